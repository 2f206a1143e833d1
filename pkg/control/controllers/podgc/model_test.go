package podgc

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine/model"
)

// TestModel: whatever nodes, agents and users do, and wherever the process is killed, a pod is deleted only if no
// node runs it, and each such pod is deleted.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := model.New(t, New())
		node, pod := rapid.SampledFrom([]string{"a", "b"}), rapid.SampledFrom([]string{"p", "q", "r"})
		gone := map[string]time.Time{} // when the cache first missed the node of a pod
		w.OnDelete = func(o client.Object) {
			p := model.Cached[*corev1.Pod](w)[o.GetName()]
			if p == nil || p.UID != o.GetUID() {
				w.T.Fatalf("it deletes %s, which it has not seen", o.GetName())
			}
			n := model.Cached[*corev1.Node](w)[p.Spec.NodeName]
			since, known := gone[p.Spec.NodeName]
			switch {
			case p.Spec.NodeName == "" && p.DeletionTimestamp != nil:
			case n != nil && abandoned(n) && p.DeletionTimestamp != nil:
			case n == nil && p.Spec.NodeName != "" && known && w.Now.Sub(since) >= Quarantine:
			default:
				w.T.Fatalf("%s is deleted at %v, but its node %v (gone since %v) may run it", p.Name, w.Now, n, since)
			}
		}
		for _, name := range []string{"a", "b"} {
			w.Create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
		}
		w.Live(map[string]func(*rapid.T){
			"node comes": func(t *rapid.T) {
				w.Create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Draw(t, "node")}})
			},
			"node goes": func(t *rapid.T) { model.Delete[*corev1.Node](w, node.Draw(t, "node")) },
			"node": func(t *rapid.T) {
				ready, out := rapid.Bool().Draw(t, "ready"), rapid.Bool().Draw(t, "out of service")
				model.Update(w, node.Draw(t, "node"), func(n *corev1.Node) {
					n.Status.Conditions, n.Spec.Taints = nil, nil
					if ready {
						n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
					}
					if out {
						n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}}
					}
				})
			},
			"pod comes": func(t *rapid.T) {
				w.Create(&corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: pod.Draw(t, "pod")},
					Status:     corev1.PodStatus{Phase: corev1.PodPending},
				})
			},
			"pod is bound": func(t *rapid.T) {
				n := node.Draw(t, "node") // it may already be gone
				model.Update(w, pod.Draw(t, "pod"), func(p *corev1.Pod) {
					if p.Spec.NodeName == "" && p.DeletionTimestamp == nil {
						p.Spec.NodeName = n
					}
				})
			},
			"pod ends": func(t *rapid.T) {
				model.Update(w, pod.Draw(t, "pod"), func(p *corev1.Pod) {
					if p.Spec.NodeName != "" {
						p.Status.Phase = corev1.PodSucceeded
					}
				})
			},
			"pod is deleted": func(t *rapid.T) {
				name := pod.Draw(t, "pod")
				model.Update(w, name, func(p *corev1.Pod) { p.Finalizers = []string{"example.org/held"} })
				model.Delete[*corev1.Pod](w, name)
			},
			"pod is released": func(t *rapid.T) {
				model.Update(w, pod.Draw(t, "pod"), func(p *corev1.Pod) { p.Finalizers = nil })
			},
			"agent removes pod": func(t *rapid.T) {
				name := pod.Draw(t, "pod")
				if p := model.Stored[*corev1.Pod](w)[name]; p != nil && p.DeletionTimestamp != nil && p.Spec.NodeName != "" {
					model.Delete[*corev1.Pod](w, name, client.GracePeriodSeconds(0))
				}
			},
		}, func() {
			nodes := model.Cached[*corev1.Node](w)
			for _, name := range []string{"a", "b"} {
				if _, known := gone[name]; nodes[name] != nil {
					delete(gone, name)
				} else if !known {
					gone[name] = w.Now
				}
			}
		})
		w.Settle(Quarantine)
		for _, p := range model.Stored[*corev1.Pod](w) {
			n := model.Stored[*corev1.Node](w)[p.Spec.NodeName]
			// deleted, except for its finalizers
			deleted := p.DeletionTimestamp != nil && p.DeletionGracePeriodSeconds != nil && *p.DeletionGracePeriodSeconds == 0
			switch {
			case deleted:
			case p.Spec.NodeName == "" && p.DeletionTimestamp != nil:
				t.Fatalf("%s was deleted before it had a node, and is left", p.Name)
			case p.Spec.NodeName != "" && n == nil:
				t.Fatalf("%s is left on a node that is gone", p.Name)
			case n != nil && abandoned(n) && p.DeletionTimestamp != nil:
				t.Fatalf("%s is left on a node that is out of service", p.Name)
			}
		}
	})
}
