package bundlecontroller

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/bundle"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestOneClusterAfterTheOther checks that each wave waits for the previous wave and each cluster for the previous
// cluster, and that objects missing in the content are deleted last.
func TestOneClusterAfterTheOther(t *testing.T) {
	w := newWorld("b", "a", "canary")
	w.o.Bundle.Spec.Rollout.Order = []metav1.LabelSelector{{MatchLabels: map[string]string{"name": "canary"}}}
	w.content("1", "x", "y@1", "z@1")
	require.Empty(t, w.writes)
	s := w.step()
	require.Empty(t, w.wrote(), "the cluster is recorded before anything is written")
	require.Equal(t, []kontrol.TargetPhase{kontrol.TargetProgressing, kontrol.TargetWaiting, kontrol.TargetWaiting},
		[]kontrol.TargetPhase{s.Targets[0].Phase, s.Targets[1].Phase, s.Targets[2].Phase})
	s = w.step()
	require.Equal(t, []string{"canary/x"}, w.wrote())
	for range 3 {
		s = w.step()
	}
	require.Empty(t, w.wrote(), "the wave is not healthy")
	require.Contains(t, s.Message, "on canary: ConfigMap/shop/x: not applied yet")
	w.heal()
	w.step()
	require.Equal(t, []string{"canary/y", "canary/z"}, w.wrote())
	s = w.finish()
	require.Equal(t, []string{"a/x", "a/y", "a/z", "b/x", "b/y", "b/z"}, w.wrote())
	require.Equal(t, kontrol.BundleSynced, s.Phase)
	require.Equal(t, []kontrol.BundleWave{{Wave: 0, Objects: 1, Clusters: 3}, {Wave: 1, Objects: 2, Clusters: 3}}, s.Waves)

	w.content("2", "x", "z@1")
	s = w.finish()
	require.Equal(t, []string{"canary/x", "canary/z", "-canary/y", "a/x", "a/z", "-a/y", "b/x", "b/z", "-b/y"}, w.wrote())
	require.Equal(t, kontrol.BundleSynced, s.Phase)

	// A cluster that is no longer selected loses its Resources.
	w.o.Bundle.Spec.ClusterSelector = &metav1.LabelSelector{
		MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "name", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"b"}},
		},
	}
	s = w.finish()
	require.Equal(t, []string{"-b/x", "-b/z"}, w.wrote())
	require.EqualValues(t, 2, s.Clusters.Total)
}

// TestAFailureStopsTheRollout checks that a failure stops it on all clusters, until the cluster recovers or the
// content changes.
func TestAFailureStopsTheRollout(t *testing.T) {
	for name, fail := range map[string]func(w *world){
		"degraded": func(w *world) { setState(w.resource("a", "x"), kontrol.StateDegraded, "it crashes") },
		"conflict": func(w *world) { setState(w.resource("a", "x"), kontrol.StateConflict, "it is claimed") },
		"refused": func(w *world) {
			setState(w.resource("a", "x"), kontrol.StateOutOfSync, "it is refused")
			w.o.Failed[w.resource("a", "x").Name] = "it is refused"
		},
		"timeout": func(w *world) { w.now = w.now.Add(kontrol.DefaultHealthTimeout + 2*time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld("a", "b")
			w.content("1", "x", "y@1")
			w.step()
			w.step()
			require.Equal(t, []string{"a/x"}, w.wrote())
			fail(w)
			for range 5 {
				w.step()
			}
			s := w.step()
			require.Empty(t, w.wrote())
			require.Equal(t, kontrol.BundleFailed, s.Phase)
			require.Contains(t, s.Message, "on a: wave 0")
			require.Equal(t, "another cluster has failed", s.Targets[1].Message)

			// With FailureContinue other clusters proceed, within maxUnavailable.
			w.o.Bundle.Spec.Rollout.OnFailure = kontrol.FailureContinue
			w.step()
			w.step()
			require.Empty(t, w.wrote(), "one cluster is unavailable already")
			two := intstr.FromInt32(2)
			w.o.Bundle.Spec.Rollout.MaxUnavailable = &two
			w.step()
			w.step()
			require.Equal(t, []string{"b/x"}, w.wrote())
			w.o.Bundle.Spec.Rollout.OnFailure = kontrol.FailureStop

			w.content("2", "x", "y@1")
			clear(w.o.Failed)
			s = w.finish()
			require.Equal(t, kontrol.BundleSynced, s.Phase, s.Message)
		})
	}
}

// TestAMissingResourceIsWrittenAfterAFailure checks that a failure does not keep a Resource away without which its
// cluster cannot recover, such as a namespace's: a cluster that lost and got a label back deletes one after the other.
func TestAMissingResourceIsWrittenAfterAFailure(t *testing.T) {
	w := newWorld("a")
	w.content("1", "space", "web")
	w.step()
	w.step()
	require.Equal(t, []string{"a/space", "a/web"}, w.wrote())
	gone := w.resource("a", "space")
	gone.DeletionTimestamp = &metav1.Time{Time: w.now}
	setState(w.resource("a", "web"), kontrol.StateOutOfSync, "no namespace")
	w.o.Failed[w.resource("a", "web").Name] = "no namespace"
	require.Equal(t, kontrol.BundleFailed, w.step().Phase)
	require.Empty(t, w.wrote())
	w.o.Resources = slices.DeleteFunc(w.o.Resources, func(r *kontrol.Resource) bool { return r == gone })
	w.step()
	require.Equal(t, []string{"a/space"}, w.wrote())
	setState(w.resource("a", "space"), kontrol.StateSynced, "")
	require.Equal(t, kontrol.BundleFailed, w.step().Phase, "it is still refused")
	clear(w.o.Failed)
	s := w.finish()
	require.Equal(t, kontrol.BundleSynced, s.Phase, s.Message)
}

// TestPausedApprovedAndUnreachable checks that each of these blocks only its own part of the rollout.
func TestPausedApprovedAndUnreachable(t *testing.T) {
	w := newWorld("a", "b")
	w.content("1", "x", "y@1")
	w.step()
	w.o.Bundle.Spec.Rollout.Paused = true
	require.Equal(t, kontrol.BundlePaused, w.finish().Phase)
	require.Empty(t, w.wrote())
	w.o.Bundle.Spec.Rollout.Paused = false
	w.step()
	require.Equal(t, []string{"a/x"}, w.wrote())
	w.o.Bundle.Spec.Rollout.Paused = true
	w.finish()
	require.Empty(t, w.wrote(), "in the middle of a cluster, too")
	w.o.Bundle.Spec.Rollout.Paused = false
	require.Equal(t, kontrol.BundleSynced, w.finish().Phase)
	w.wrote()

	w.o.Bundle.Spec.Rollout.Approval = kontrol.ApprovalManual
	w.content("2", "x", "y@1")
	s := w.finish()
	require.Empty(t, w.wrote())
	require.Equal(t, kontrol.BundleWaiting, s.Phase)
	require.Contains(t, s.Message, "coracle kontrol approve bundle/web")
	w.o.Bundle.Status.Approved = w.o.Content
	w.reach("b", false)
	s = w.finish()
	require.Empty(t, w.wrote(), "one cluster is unavailable already")
	require.Equal(t, kontrol.BundleWaiting, s.Phase)
	require.Contains(t, s.Message, "on b: cluster b: does not answer", "rather than that a waits for it")
	w.reach("b", true)
	require.Equal(t, kontrol.BundleSynced, w.finish().Phase)

	// Drift does not hold up a rollout, but the status shows it.
	w.resource("a", "x").Status.State = kontrol.StateDrifted
	s = w.step()
	require.Equal(t, kontrol.BundleSynced, s.Phase)
	require.Equal(t, "drift on 1 cluster: see `coracle kontrol drift`", s.Message)
	w.resource("a", "x").Status.State = kontrol.StateSynced

	// Edits of a Resource are reverted, except suspend.
	w.wrote()
	w.resource("a", "x").Spec.Mode = kontrol.ModeReport
	w.resource("b", "x").Spec.Suspend = true
	w.finish()
	require.Equal(t, []string{"a/x"}, w.wrote())
}

func TestTooManyResourcesAreRefused(t *testing.T) {
	w := newWorld()
	for i := range 30 {
		w.o.Clusters = append(w.o.Clusters, &kontrol.Cluster{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("c", i)}})
	}
	var names []string
	for i := range 400 {
		names = append(names, fmt.Sprint("o", i))
	}
	w.content("1", names...)
	s := w.step()
	require.Equal(t, kontrol.BundleInvalid, s.Phase)
	require.Contains(t, s.Message, "are 12000 Resources, at most 10000 are allowed")
}

func TestNamesAreUniqueAndValid(t *testing.T) {
	b := &kontrol.Bundle{ObjectMeta: metav1.ObjectMeta{Name: strings.Repeat("b", 63)}}
	seen := map[string]bool{}
	for _, cluster := range []string{"a", strings.Repeat("c", 63)} {
		for _, kind := range []string{"ConfigMap", "Secret"} {
			for _, name := range []string{
				"x", "x.y", "x-y", strings.Repeat("n", 250) + "1", strings.Repeat("n", 250) + "2", "system:node",
			} {
				r := resource(b, cluster, &bundle.Object{
					Target: kontrol.Target{APIVersion: "v1", Kind: kind, Namespace: "n", Name: name},
					JSON: []byte(`{"apiVersion":"v1","kind":"` + kind + `","metadata":{"namespace":"n","name":"` + name +
						`"}}`),
				})
				kontrol.Default(r)
				require.Empty(t, kontrol.Validate(r), r.Name)
				require.False(t, seen[r.Name])
				seen[r.Name] = true
			}
		}
	}
}

// TestRollout checks invariants under failures, recoveries, edits, pauses and kills: at most maxUnavailable clusters
// change at a time, a wave begins only when the previous one is healthy, and in the end all clusters have the content.
func TestRollout(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		clusters := []string{"a", "b", "c", "d"}[:rapid.IntRange(1, 4).Draw(t, "clusters")]
		w := newWorld(clusters...)
		most := rapid.IntRange(1, 3).Draw(t, "most")
		m := intstr.FromInt32(int32(most))
		w.o.Bundle.Spec.Rollout.MaxUnavailable = &m
		if rapid.Bool().Draw(t, "continue") {
			w.o.Bundle.Spec.Rollout.OnFailure = kontrol.FailureContinue
		}
		w.content("0", "x", "y@1", "z@2")
		version := 0
		touched := func(before map[string]int64) map[string]bool {
			out := map[string]bool{}
			for _, r := range w.o.Resources {
				if before[r.Name] != r.Generation {
					out[r.Spec.ClusterName] = true
				}
			}
			return out
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 7).Draw(t, "what") {
			case 0:
				version++
				w.content(fmt.Sprint(version), "x", "y@1", "z@2")
			case 1:
				w.reach(rapid.SampledFrom(clusters).Draw(t, "cluster"), rapid.Bool().Draw(t, "up"))
			case 2:
				w.o.Bundle.Spec.Rollout.Paused = !w.o.Bundle.Spec.Rollout.Paused
			case 3:
				if r := w.resource(rapid.SampledFrom(clusters).Draw(t, "cluster"), "x"); r != nil {
					setState(r, kontrol.StateDegraded, "broken")
				}
			case 4:
				w.now = w.now.Add(time.Duration(rapid.IntRange(1, 400).Draw(t, "seconds")) * time.Second)
			case 5: // killed after the status was written
				w.o.Bundle.Status = Plan(w.o, w.now).Status
			default:
				w.heal(rapid.SampledFrom(clusters).Draw(t, "cluster"))
			}
			before, unready := map[string]int64{}, map[string]bool{}
			for _, r := range w.o.Resources {
				before[r.Name] = r.Generation
			}
			targets, _ := targetsOf(w.o)
			for _, c := range targets {
				c.judge(w.o, w.now)
				if c.unavailable(w.o.Content) {
					unready[c.name] = true
				}
			}
			was := len(unready)
			paused := w.o.Bundle.Spec.Rollout.Paused
			w.step()
			wrote := touched(before)
			if paused && len(wrote) > 0 {
				t.Fatalf("written while paused: %v", wrote)
			}
			for c := range wrote {
				unready[c] = true
				if w.resource(c, "z") != nil && w.resource(c, "z").Generation != before[w.resource(c, "z").Name] &&
					notHealthy(w.resource(c, "y")) != "" {
					t.Fatalf("wave 2 on %s before wave 1 is healthy", c)
				}
			}
			if len(unready) > max(most, was) {
				t.Fatalf("%d clusters are unavailable: %v", len(unready), unready)
			}
		}
		w.o.Bundle.Spec.Rollout.Paused = false
		for _, c := range clusters {
			w.reach(c, true)
		}
		w.heal()
		if s := w.finish(); s.Phase != kontrol.BundleSynced {
			t.Fatalf("%s: %s", s.Phase, s.Message)
		}
	})
}

func TestAHubThatWasAwayGoesOn(t *testing.T) {
	w := newWorld("a")
	w.content("1", "x", "y@1")
	w.step() // records that the cluster has begun; then the hub is down for longer than a wave's timeout
	w.now = w.now.Add(time.Hour)
	s := w.finish()
	require.Equal(t, kontrol.BundleSynced, s.Phase, s.Message)
}

func TestWindows(t *testing.T) {
	w := newWorld("a", "b")
	night := []kontrol.SyncWindow{
		{Kind: kontrol.WindowAllow, Schedule: "0 2 * * *", Duration: metav1.Duration{Duration: 10 * time.Minute}},
	}
	w.now = time.Date(2026, 1, 2, 1, 59, 0, 0, time.UTC)
	w.o.Bundle.Spec.Windows = night
	w.content("1", "one@0")
	s := w.step()
	require.Equal(t, kontrol.BundleWaiting, s.Phase)
	require.Contains(t, s.Message, "not before 2026-01-02T02:00:00Z")
	require.Empty(t, w.writes)
	require.Equal(t, time.Minute, Plan(w.o, w.now).Again)

	w.now = w.now.Add(time.Minute)
	w.step()
	w.step()
	require.Len(t, w.writes, 1, "the first cluster is under way")
	require.Equal(t, night, w.o.Resources[0].Spec.Windows, "its Resource is applied and corrected in the windows alone")

	// The window ends during a wave. A day later the wave has its full timeout again.
	w.now = w.now.Add(11 * time.Minute)
	require.Nil(t, w.step().Targets[0].Since)
	w.now = w.now.Add(23*time.Hour + 50*time.Minute)
	s = w.step()
	require.Equal(t, kontrol.BundleProgressing, s.Phase, s.Message)
	require.NotNil(t, s.Targets[0].Since)
	w.now = w.now.Add(6 * time.Minute)
	require.Equal(t, kontrol.BundleFailed, w.step().Phase)
}
