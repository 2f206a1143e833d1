package job

import (
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/engine/indexes"
)

// judged is the result of a job's pod failure policy for a failed pod.
type judged struct {
	action  batchv1.PodFailurePolicyAction // empty if no rule matches
	message string                         // for FailJob
}

func (j judged) counts() bool { return j.action != batchv1.PodFailurePolicyActionIgnore }

// judge applies the first matching rule (KEP-3329).
func judge(policy *batchv1.PodFailurePolicy, p *corev1.Pod) judged {
	if policy == nil {
		return judged{}
	}
	for i, rule := range policy.Rules {
		switch {
		case rule.OnExitCodes != nil:
			c := exited(p.Status.ContainerStatuses, rule.OnExitCodes)
			if c == nil {
				c = exited(p.Status.InitContainerStatuses, rule.OnExitCodes)
			}
			if c != nil {
				return judged{
					rule.Action, fmt.Sprintf("Container %s for pod %s/%s failed with exit code %v matching %v rule at index %d",
						c.Name, p.Namespace, p.Name, c.State.Terminated.ExitCode, rule.Action, i),
				}
			}
		case rule.OnPodConditions != nil:
			if c := hasCondition(p, rule.OnPodConditions); c != nil {
				return judged{
					rule.Action,
					fmt.Sprintf("Pod %s/%s has condition %v matching %v rule at index %d", p.Namespace, p.Name, c.Type, rule.Action,
						i),
				}
			}
		}
	}
	return judged{}
}

func exited(list []corev1.ContainerStatus,
	want *batchv1.PodFailurePolicyOnExitCodesRequirement) *corev1.ContainerStatus {
	for i := range list {
		end := list[i].State.Terminated
		if end == nil || end.ExitCode == 0 || want.ContainerName != nil && *want.ContainerName != list[i].Name {
			continue
		}
		in := slices.Contains(want.Values, end.ExitCode)
		if want.Operator == batchv1.PodFailurePolicyOnExitCodesOpIn && in ||
			want.Operator == batchv1.PodFailurePolicyOnExitCodesOpNotIn && !in {
			return &list[i]
		}
	}
	return nil
}

func hasCondition(p *corev1.Pod, want []batchv1.PodFailurePolicyOnPodConditionsPattern) *corev1.PodCondition {
	for i := range p.Status.Conditions {
		c := &p.Status.Conditions[i]
		if slices.ContainsFunc(want, func(w batchv1.PodFailurePolicyOnPodConditionsPattern) bool {
			return w.Type == c.Type && w.Status == c.Status
		}) {
			return c
		}
	}
	return nil
}

// succeeds applies the first rule of a success policy that is met (KEP-3998).
func succeeds(policy *batchv1.SuccessPolicy, done indexes.Set, completions int) (message string, ok bool) {
	if policy == nil || len(done) == 0 {
		return "", false
	}
	for i, rule := range policy.Rules {
		met := false
		switch {
		case rule.SucceededIndexes != nil:
			want := indexes.Parse(*rule.SucceededIndexes, completions)
			have := want.Common(done)
			met = len(want) > 0 && (have == want.Count() || rule.SucceededCount != nil && have >= int(*rule.SucceededCount))
		case rule.SucceededCount != nil:
			met = done.Count() >= int(*rule.SucceededCount)
		}
		if met {
			return fmt.Sprintf("Matched rules at index %d", i), true
		}
	}
	return "", false
}
