package bundlecontroller

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/base/count"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/window"
)

func cut(text string) string { return bounded.Text(text, kontrol.MaxError) }

// sum sets the fields of the status that summarize all clusters.
func sum(s *kontrol.BundleStatus, b *kontrol.Bundle, targets []*target, approved, stopped bool, open window.State) {
	s.Clusters = kontrol.BundleCounts{Total: int32(len(targets))}
	first := map[kontrol.TargetPhase]string{}
	for i := range s.Targets {
		t := &s.Targets[i]
		*map[kontrol.TargetPhase]*int32{
			kontrol.TargetSynced: &s.Clusters.Synced, kontrol.TargetProgressing: &s.Clusters.Progressing,
			kontrol.TargetWaiting: &s.Clusters.Waiting, kontrol.TargetFailed: &s.Clusters.Failed,
		}[t.Phase]++
		// What holds up a cluster says more than that others wait for it.
		if was := first[t.Phase]; was == "" || strings.HasSuffix(was, waitsForOthers) && t.Message != waitsForOthers {
			first[t.Phase] = "on " + t.Name + ": " + t.Message
		}
	}
	s.Waves = waves(s.Content, targets)
	c := &s.Clusters
	switch {
	case c.Failed > 0:
		s.Phase, s.Message = kontrol.BundleFailed, first[kontrol.TargetFailed]
		if stopped {
			s.Message += ": the rollout is stopped until the cluster recovers or the content changes"
		}
	case b.Spec.Rollout.Paused:
		s.Phase, s.Message = kontrol.BundlePaused, "spec.rollout.paused is true: set it to false to go on"
	case c.Total == 0:
		s.Phase, s.Message = kontrol.BundleWaiting, "no cluster matches the selector: label a cluster, or change "+
			"spec.clusterSelector"
	case c.Synced == c.Total:
		s.Phase, s.Message = kontrol.BundleSynced, drift(targets)
	case !approved:
		s.Phase, s.Message = kontrol.BundleWaiting, fmt.Sprintf("content %s waits for approval: coracle kontrol approve "+
			"bundle/%s", s.Content, b.Name)
	case !open.Open:
		s.Phase, s.Message = kontrol.BundleWaiting, open.Message()
	case c.Progressing > 0:
		s.Phase, s.Message = kontrol.BundleProgressing, first[kontrol.TargetProgressing]
	default:
		s.Phase, s.Message = kontrol.BundleWaiting, first[kontrol.TargetWaiting]
	}
	s.Message = cut(s.Message)
	condition(s, kontrol.ConditionContentReady, true, "Read", count.Of(s.Objects, "object"))
	condition(s, kontrol.ConditionReady, s.Phase == kontrol.BundleSynced, string(s.Phase), s.Message)
}

// drift returns a message if objects of healthy clusters drift; empty if none does.
func drift(targets []*target) string {
	n := 0
	for _, t := range targets {
		if slices.ContainsFunc(slices.Collect(maps.Values(t.has)), func(r *kontrol.Resource) bool {
			return r.Status.State == kontrol.StateDrifted
		}) {
			n++
		}
	}
	if n == 0 {
		return ""
	}
	return "drift on " + count.Of(n, "cluster") + ": see `coracle kontrol drift`"
}

// waves counts, for each wave, the clusters that have completed it.
func waves(content string, targets []*target) (list []kontrol.BundleWave) {
	for n, t := range targets {
		for i := range t.waves {
			w := &t.waves[i]
			if n == 0 {
				list = append(list, kontrol.BundleWave{Wave: int32(w.number), Objects: int32(w.objects)})
			}
			if t.begun(content) && i < t.next {
				list[i].Clusters++
			}
		}
	}
	return list
}

func condition(s *kontrol.BundleStatus, kind string, is bool, reason, message string) {
	c := metav1.Condition{
		Type:               kind,
		Status:             metav1.ConditionFalse,
		Reason:             reason,
		Message:            message,
		ObservedGeneration: s.ObservedGeneration,
	}
	if is {
		c.Status = metav1.ConditionTrue
	}
	meta.SetStatusCondition(&s.Conditions, c)
}

// invalid returns a step that only reports why the content cannot be used. Objects on the clusters stay as they are.
func invalid(step Step, text string) Step {
	s := &step.Status
	s.Phase, s.Message = kontrol.BundleInvalid, cut(text)
	condition(s, kontrol.ConditionContentReady, false, "Invalid", s.Message)
	condition(s, kontrol.ConditionReady, false, string(s.Phase), s.Message)
	return Step{Status: *s}
}
