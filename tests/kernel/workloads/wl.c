/* The workloads of the kernel tests: one static program, one mode each.
 *
 *   wl LOG MODE [key=value ...]
 *
 * Sets up its memory, writes "ready" to LOG, then once a second a line "seconds ops p99_us max_us": monotonic time, operations done in that
 * second, and how long they took. Sizes are MiB. Runs until killed. An operation is one random touch of the hot part; where nothing is hot,
 * one sleep of ten milliseconds, whose lateness shows that the process itself is held up.
 *
 *   anon   size hot touch   anonymous memory, of which hot is used; SIGUSR1 takes touch MiB more
 *   mlock  size             the same, locked
 *   file   path skip size hot    page cache by read(2): all once, then the hot part; skip is where it begins
 *   mmapf  path skip size hot    page cache by a mapping: all once, then the hot part
 *   dirty  path size        random 4 KiB writes over a file of that size
 *   shm    path size        a file on tmpfs, written once
 *   leak   size rate        anonymous memory that grows by rate MiB a second
 *   burst  size peak every hold   every so many seconds peak MiB more, for hold seconds
 *   kernel size rate        kernel memory that cannot be reclaimed: full pipes; grows by rate MiB a second from size on
 *   dentry path count       names that are not there below path, count a second: slab that can be reclaimed
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define PAGE ((size_t)4096)
#define BUCKETS 256 /* eight to each power of two of microseconds */

static int log_fd;
static uint64_t counts[BUCKETS], ops, max_us;
static double next_line;
static uint64_t seed = 88172645463325252ULL;
static volatile sig_atomic_t asked;

static void die(const char *what)
{
	dprintf(log_fd > 0 ? log_fd : 2, "error %s: %s\n", what, strerror(errno));
	exit(3);
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static uint64_t any(uint64_t below)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed % below;
}

static int bucket_of(uint64_t us)
{
	int power;
	if (us < 8)
		return (int)us;
	power = 63 - __builtin_clzll(us);
	return (power - 2) * 8 + (int)((us >> (power - 3)) & 7);
}

static uint64_t top_of(int bucket)
{
	int power = bucket / 8 + 2;
	return bucket < 8 ? (uint64_t)bucket : (uint64_t)(8 + bucket % 8 + 1) << (power - 3);
}

static uint64_t p99(void)
{
	uint64_t seen = 0;
	for (int i = 0; i < BUCKETS; i++) {
		seen += counts[i];
		if (seen * 100 >= ops * 99)
			return top_of(i);
	}
	return max_us;
}

static void done(double began)
{
	double ended = now();
	uint64_t us = (uint64_t)((ended - began) * 1e6);
	ops++;
	counts[bucket_of(us)]++;
	if (us > max_us)
		max_us = us;
	if (ended >= next_line) {
		dprintf(log_fd, "%.3f %llu %llu %llu\n", ended, (unsigned long long)ops, (unsigned long long)p99(), (unsigned long long)max_us);
		memset(counts, 0, sizeof(counts));
		ops = max_us = 0;
		next_line = ended + 1;
	}
}

static void ready(void)
{
	dprintf(log_fd, "ready\n");
	next_line = now() + 1;
}

static void nap(void)
{
	double began = now();
	usleep(10000);
	done(began);
}

static char *take(size_t size)
{
	char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		die("mmap");
	madvise(memory, size, MADV_NOHUGEPAGE);
	for (size_t at = 0; at < size; at += PAGE)
		*(uint64_t *)(memory + at) = at + 1;
	return memory;
}

static const char *option(int count, char **words, const char *key, const char *otherwise)
{
	size_t length = strlen(key);
	for (int i = 0; i < count; i++)
		if (!strncmp(words[i], key, length) && words[i][length] == '=')
			return words[i] + length + 1;
	return otherwise;
}

static void on_signal(int number)
{
	(void)number;
	asked = 1;
}

static void anon(size_t size, size_t hot, size_t touch, int lock)
{
	char *memory = take(size);
	if (lock && mlock(memory, size))
		die("mlock");
	signal(SIGUSR1, on_signal);
	ready();
	for (;;) {
		if (asked) {
			asked = 0;
			take(touch);
		}
		if (hot) {
			double began = now();
			for (int i = 0; i < 16; i++)
				*(volatile uint64_t *)(memory + any(hot / PAGE) * PAGE) += 1;
			done(began);
		} else {
			nap();
		}
	}
}

static void file(const char *path, size_t skip, size_t size, size_t hot)
{
	char *buffer = take(MIB);
	int fd = open(path, O_RDONLY);
	if (fd < 0)
		die(path);
	posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
	for (size_t at = 0; at < size; at += MIB)
		if (pread(fd, buffer, MIB, (off_t)(skip + at)) < 0)
			die("read");
	ready();
	for (;;) {
		double began = now();
		if (hot && pread(fd, buffer, PAGE, (off_t)(skip + any(hot / PAGE) * PAGE)) < 0)
			die("read");
		if (hot)
			done(began);
		else
			nap();
	}
}

static void mmapf(const char *path, size_t skip, size_t size, size_t hot)
{
	volatile uint64_t sum = 0;
	int fd = open(path, O_RDONLY);
	char *memory = fd < 0 ? MAP_FAILED : mmap(NULL, size, PROT_READ, MAP_SHARED, fd, (off_t)skip);
	if (memory == MAP_FAILED)
		die(path);
	for (size_t at = 0; at < size; at += PAGE)
		sum += *(volatile uint64_t *)(memory + at);
	madvise(memory, size, MADV_RANDOM);
	ready();
	for (;;) {
		double began = now();
		if (hot)
			sum += *(volatile uint64_t *)(memory + any(hot / PAGE) * PAGE);
		if (hot)
			done(began);
		else
			nap();
	}
}

static void dirty(const char *path, size_t size)
{
	char *buffer = take(PAGE);
	int fd = open(path, O_RDWR | O_CREAT, 0600);
	if (fd < 0)
		die(path);
	ready();
	for (;;) {
		double began = now();
		if (pwrite(fd, buffer, PAGE, (off_t)(any(size / PAGE) * PAGE)) < 0)
			die("write");
		done(began);
	}
}

static void shm(const char *path, size_t size)
{
	char *buffer = take(MIB);
	int fd = open(path, O_RDWR | O_CREAT, 0600);
	if (fd < 0)
		die(path);
	for (size_t at = 0; at < size; at += MIB)
		if (pwrite(fd, buffer, MIB, (off_t)at) < 0)
			die("write");
	ready();
	for (;;)
		nap();
}

static void leak(size_t size, double rate)
{
	double began, taken = 0;
	take(size);
	ready();
	for (began = now();;) {
		nap();
		while ((now() - began) * rate * MIB - taken >= 64 * PAGE) {
			take(64 * PAGE);
			taken += 64 * PAGE;
		}
	}
}

static void burst(size_t size, size_t peak, double every, double hold)
{
	take(size);
	ready();
	for (double next = now() + every / 2;; next += every) {
		double began;
		char *memory;
		while (now() < next)
			nap();
		began = now();
		memory = take(peak);
		done(began);
		while (now() < began + hold)
			nap();
		munmap(memory, peak);
	}
}

static void kernel_memory(size_t size, double rate)
{
	static char page[PAGE];
	struct rlimit limit = {1 << 19, 1 << 19};
	double began = 0, filled = 0;
	setrlimit(RLIMIT_NOFILE, &limit);
	for (;;) {
		double wanted = began == 0 ? (double)size : (double)size + (now() - began) * rate * MIB;
		int ends[2];
		if (began == 0 && filled >= wanted) {
			ready();
			began = now();
		}
		if (filled >= wanted) {
			nap();
			continue;
		}
		if (pipe2(ends, O_NONBLOCK))
			die("pipe");
		while (write(ends[1], page, PAGE) == (ssize_t)PAGE)
			filled += PAGE;
	}
}

static void dentry(const char *path, double per_second)
{
	double began = now();
	char name[512];
	ready();
	for (uint64_t made = 0;; nap()) {
		/* At most a tenth of a second's share at a time, or a slow machine would never come to report. */
		uint64_t wanted = (uint64_t)((now() - began) * per_second), most = made + (uint64_t)(per_second / 10);
		for (; made < wanted && made < most; made++) {
			snprintf(name, sizeof(name), "%s/no-such-name-%llu", path, (unsigned long long)made);
			access(name, F_OK);
		}
	}
}

int main(int argc, char **argv)
{
	const char *mode, *path;
	size_t skip, size, hot;
	double rate;

	if (argc < 3)
		return 2;
	log_fd = open(argv[1], O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
	if (log_fd < 0)
		die(argv[1]);
	mode = argv[2];
	path = option(argc, argv, "path", "");
	skip = (size_t)atol(option(argc, argv, "skip", "0")) * MIB;
	size = (size_t)atol(option(argc, argv, "size", "0")) * MIB;
	hot = (size_t)atol(option(argc, argv, "hot", "0")) * MIB;
	rate = atof(option(argc, argv, "rate", "0"));
	if (!strcmp(mode, "anon") || !strcmp(mode, "mlock"))
		anon(size, hot, (size_t)atol(option(argc, argv, "touch", "0")) * MIB, !strcmp(mode, "mlock"));
	else if (!strcmp(mode, "file"))
		file(path, skip, size, hot);
	else if (!strcmp(mode, "mmapf"))
		mmapf(path, skip, size, hot);
	else if (!strcmp(mode, "dirty"))
		dirty(path, size);
	else if (!strcmp(mode, "shm"))
		shm(path, size);
	else if (!strcmp(mode, "leak"))
		leak(size, rate);
	else if (!strcmp(mode, "burst"))
		burst(size, (size_t)atol(option(argc, argv, "peak", "0")) * MIB, atof(option(argc, argv, "every", "10")), atof(option(argc, argv, "hold", "2")));
	else if (!strcmp(mode, "kernel"))
		kernel_memory(size, rate);
	else if (!strcmp(mode, "dentry"))
		dentry(path, atof(option(argc, argv, "count", "1000")));
	errno = EINVAL;
	die(mode);
}
