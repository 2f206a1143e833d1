package tainteviction

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine/model"
	"github.com/coracle-dev/coracle/pkg/engine/podstate"
)

// longest is the longest finite toleration, in seconds.
const longest = 300

// stay returns how long a pod tolerates a taint. A negative value means forever.
func stay(p *corev1.Pod, t corev1.Taint) time.Duration {
	shortest, found := time.Duration(-1), false
	for _, tol := range p.Spec.Tolerations {
		if tol.Key == t.Key {
			found = true
			if s := tol.TolerationSeconds; s != nil && (shortest < 0 || time.Duration(*s)*time.Second < shortest) {
				shortest = time.Duration(*s) * time.Second
			}
		}
	}
	if !found {
		return 0
	}
	return shortest
}

// TestModel: whatever is done to taints, pods and tolerations, and wherever the process is killed, no pod is
// evicted too early, and none stays too long.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := model.New(t, New())
		first := map[string]time.Time{} // when the cache first showed a taint, by node and key
		node, pod, taint := rapid.SampledFrom([]string{"a", "b"}), rapid.SampledFrom([]string{
			"p", "q", "r",
		}), rapid.SampledFrom([]string{"one", "two"})
		tolerations := func(t *rapid.T) []corev1.Toleration {
			var out []corev1.Toleration
			for _, key := range []string{"one", "two"} {
				tol := corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists}
				switch rapid.IntRange(0, 3).Draw(t, key) {
				case 0:
					continue
				case 1:
				default:
					tol.TolerationSeconds = new(rapid.SampledFrom([]int64{0, 10, 60, longest}).Draw(t, "seconds"))
				}
				out = append(out, tol)
			}
			return out
		}
		w.OnDelete = func(o client.Object) {
			// Evictions follow the cache, which may lag.
			p := model.Cached[*corev1.Pod](w)[o.GetName()]
			if p == nil || p.UID != o.GetUID() {
				w.T.Fatalf("it evicts %s, which it has not seen", o.GetName())
			}
			n := model.Cached[*corev1.Node](w)[p.Spec.NodeName]
			for _, t := range n.Spec.Taints {
				from := first[n.Name+t.Key]
				if t.TimeAdded != nil {
					from = t.TimeAdded.Time
				}
				if c := came(p); c.After(from) {
					from = c
				}
				if s := stay(p, t); s == 0 || s > 0 && w.Now.Sub(from) >= s {
					return
				}
			}
			w.T.Fatalf("%s is evicted at %v from a node with %v", o.GetName(), w.Now, n.Spec.Taints)
		}
		for _, name := range []string{"a", "b"} {
			w.Create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
		}
		w.Live(map[string]func(*rapid.T){
			"node comes": func(t *rapid.T) {
				w.Create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Draw(t, "node")}})
			},
			"node goes": func(t *rapid.T) {
				if n := node.Draw(t, "node"); rapid.IntRange(0, 3).Draw(t, "rarely") == 0 {
					model.Delete[*corev1.Node](w, n)
				}
			},
			"taint": func(t *rapid.T) {
				added := corev1.Taint{Key: taint.Draw(t, "taint"), Effect: corev1.TaintEffectNoExecute}
				if rapid.Bool().Draw(t, "timed") {
					added.TimeAdded = &metav1.Time{Time: w.Now}
				}
				model.Update(w, node.Draw(t, "node"), func(n *corev1.Node) {
					for _, is := range n.Spec.Taints {
						if is.Key == added.Key {
							return
						}
					}
					n.Spec.Taints = append(n.Spec.Taints, added)
				})
			},
			"no taint": func(t *rapid.T) {
				key := taint.Draw(t, "taint")
				model.Update(w, node.Draw(t, "node"), func(n *corev1.Node) {
					n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(is corev1.Taint) bool { return is.Key == key })
				})
			},
			"pod comes": func(t *rapid.T) {
				w.Create(&corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: pod.Draw(t, "pod")},
					Spec:       corev1.PodSpec{Tolerations: tolerations(t)},
				})
			},
			"pod is bound": func(t *rapid.T) {
				n := node.Draw(t, "node")
				if model.Stored[*corev1.Node](w)[n] == nil {
					return
				}
				model.Update(w, pod.Draw(t, "pod"), func(p *corev1.Pod) {
					if p.Spec.NodeName == "" {
						p.Spec.NodeName = n
						p.Status.Conditions, _ = podstate.WithCondition(nil,
							corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, w.Now)
					}
				})
			},
			"tolerations change": func(t *rapid.T) {
				to := tolerations(t)
				model.Update(w, pod.Draw(t, "pod"), func(p *corev1.Pod) { p.Spec.Tolerations = to })
			},
			"pod goes": func(t *rapid.T) { model.Delete[*corev1.Pod](w, pod.Draw(t, "pod"), client.GracePeriodSeconds(0)) },
		}, func() {
			seen := map[string]time.Time{}
			for _, n := range model.Cached[*corev1.Node](w) {
				for _, t := range n.Spec.Taints {
					seen[n.Name+t.Key] = w.Now
					if at, ok := first[n.Name+t.Key]; ok {
						seen[n.Name+t.Key] = at
					}
				}
			}
			first = seen
		})
		w.Settle((longest + 10) * time.Second)
		for _, p := range model.Stored[*corev1.Pod](w) {
			n := model.Stored[*corev1.Node](w)[p.Spec.NodeName]
			if n == nil || p.DeletionTimestamp != nil {
				continue
			}
			for _, taint := range n.Spec.Taints {
				if stay(p, taint) >= 0 {
					t.Fatalf("%s stays on a node with %v, which it tolerates no longer: %v", p.Name, n.Spec.Taints, p.Spec.Tolerations)
				}
			}
		}
	})
}
