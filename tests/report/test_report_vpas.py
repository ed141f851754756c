from vpa_ippr.api.meta import Condition, ObjectMeta
from vpa_ippr.api.pod import Container, Pod, PodSpec
from vpa_ippr.api.resources import Amounts, ContainerResources, ResourceRequirements
from vpa_ippr.api.series import WorkloadRef
from vpa_ippr.api.vpa import ContainerRecommendation, PodRecommendation, TargetRef, Vpa, VpaSpec, VpaStatus
from vpa_ippr.report.model import Current
from vpa_ippr.report.vpas import advice_of, current_of

WEB = WorkloadRef("shop", "Deployment", "web")


def vpa(*containers, name="web", target=True, conditions=()):
    spec = VpaSpec(TargetRef("Deployment", name) if target else None)
    recommendation = PodRecommendation(list(containers)) if containers else None
    return Vpa(ObjectMeta(name=name, namespace="shop"), spec, VpaStatus(recommendation, list(conditions)))


APP = ContainerRecommendation("app", {"cpu": "100m", "memory": "1Ki"}, {"cpu": "50m"}, {"cpu": "200m"})


def test_advice_is_what_the_status_recommends():
    (advice,), without, unreadable = advice_of([vpa(APP)])
    assert (advice.workload, advice.container) == (WEB, "app")
    assert (advice.target, advice.lower_bound, advice.upper_bound) == (Amounts(100, 1024), Amounts(50), Amounts(200))
    assert (advice.confidence, advice.why, advice.notes) == (None, "from vpa web, mode Recreate", ())
    assert (without, unreadable) == ([], [])


def test_low_confidence_is_noted_while_it_lasts():
    low = Condition("LowConfidence", "True", "ShortHistory", "the history is short")
    (noted, unnoted), *_ = advice_of(
        [vpa(APP, name="a", conditions=[low]), vpa(APP, name="b", conditions=[Condition("LowConfidence", "False")])]
    )
    assert (noted.notes, unnoted.notes) == (("the history is short",), ())


def test_a_vpa_without_advice_says_why():
    unsupported = Condition("ConfigUnsupported", "True", "TargetNotFound", "there is none")
    missing = Condition("RecommendationProvided", "False", "TargetNotFound", "there is none")
    advice, without, unreadable = advice_of(
        [vpa(name="new"), vpa(name="bad", conditions=[missing, unsupported]), vpa(APP, name="aimless", target=False)]
    )
    assert [(finding.subject, finding.reason) for finding in without] == [
        ("vpa shop/aimless", "NoRecommendation"),
        ("vpa shop/bad", "TargetNotFound"),
        ("vpa shop/new", "NoRecommendation"),
    ]
    assert without[1].message == "there is none"
    assert (advice, unreadable) == ([], [])


def test_one_unreadable_recommendation_leaves_the_others():
    odd = ContainerRecommendation("odd", {"cpu": "lots"})
    advice, _, (unreadable,) = advice_of([vpa(odd, APP), vpa(APP, name="other")])
    assert [(one.workload.name, one.container) for one in advice] == [("other", "app"), ("web", "app")]
    assert (unreadable.reason, unreadable.subject) == ("BadQuantity", "vpa shop/web")
    assert unreadable.message.startswith("vpa shop/web status.recommendation[odd].target: ")


def pod(name, **cpu):
    containers = [Container(one, resources=ResourceRequirements({"cpu": value})) for one, value in cpu.items()]
    return Pod(ObjectMeta(name=name, namespace="shop"), PodSpec(containers))


def test_current_resources_of_pods_and_what_cannot_be_read_of_them():
    current, (finding,) = current_of([pod("web-0", app="100m", odd="lots"), pod("web-1", app="100m")], lambda _: WEB)
    assert current == {(WEB, "app"): Current(ContainerResources(Amounts(100)), 2)}
    assert (finding.subject, finding.reason) == ("pod shop/web-0", "BadQuantity")
