package resourceclaim

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine/model"
)

// inNeed returns the pod of a reservation if the pod exists and is not done, otherwise nil.
func inNeed(w *model.World, ref resourcev1.ResourceClaimConsumerReference) *corev1.Pod {
	p := model.Stored[*corev1.Pod](w)[ref.Name]
	if p == nil || p.UID != ref.UID || done(p) {
		return nil
	}
	return p
}

// allocate allocates a claim as the scheduler does, and reserves it for p unless p is nil.
func allocate(w *model.World, name string, p *corev1.Pod) {
	model.Update(w, name, func(c *resourcev1.ResourceClaim) {
		if c.DeletionTimestamp != nil || p != nil && p.DeletionTimestamp != nil {
			return
		}
		if !slices.Contains(c.Finalizers, resourcev1.Finalizer) {
			c.Finalizers = append(c.Finalizers, resourcev1.Finalizer)
		}
		c.Status.Allocation = &resourcev1.AllocationResult{
			Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{{Device: "gpu"}}},
		}
		if p != nil && !resourceclaim.IsReservedForPod(p, c, false) {
			c.Status.ReservedFor = append(c.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{
				Resource: "pods", Name: p.Name, UID: p.UID,
			})
		}
	})
}

// TestModel: whatever pods, users and the scheduler do, and wherever the process is killed, no device is taken
// from a pod that needs it, and no pod gets a second claim while it has one. When all actors are idle, each pod
// has its claims and reservations, and there are no others.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := model.New(t, New(), NewRelease())
		w.OnUpdate = func(was, is client.Object) {
			switch was := was.(type) {
			case *resourcev1.ResourceClaim:
				for _, ref := range was.Status.ReservedFor {
					if p := inNeed(w, ref); p != nil &&
						(is.(*resourcev1.ResourceClaim).Status.Allocation == nil ||
							!resourceclaim.IsReservedForPod(p, is.(*resourcev1.ResourceClaim), false)) {
						w.T.Fatalf("claim %s is taken from %s", was.Name, p.Name)
					}
				}
			case *corev1.Pod:
				for _, s := range was.Status.ResourceClaimStatuses {
					c := model.Stored[*resourcev1.ResourceClaim](w)[*s.ResourceClaimName]
					if c != nil && metav1.IsControlledBy(c, was) && !slices.ContainsFunc(is.(*corev1.Pod).Status.ResourceClaimStatuses,
						func(now corev1.PodResourceClaimStatus) bool { return *now.ResourceClaimName == c.Name }) {
						w.T.Fatalf("pod %s, which has claim %s, gets another one", was.Name, c.Name)
					}
				}
			}
		}
		pod := rapid.SampledFrom([]string{"p", "q"})
		template, shared := "template", "shared"
		w.Create(&resourcev1.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: template}})
		someClaim := func(t *rapid.T) string {
			var names []string
			for name := range model.Stored[*resourcev1.ResourceClaim](w) {
				names = append(names, name)
			}
			if len(names) == 0 {
				return ""
			}
			slices.Sort(names)
			return rapid.SampledFrom(names).Draw(t, "claim")
		}
		w.Live(map[string]func(*rapid.T){
			"template": func(t *rapid.T) {
				if rapid.IntRange(0, 2).Draw(t, "rarely") == 0 {
					model.Delete[*resourcev1.ResourceClaimTemplate](w, template)
					return
				}
				w.Create(&resourcev1.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: template}})
			},
			"shared claim": func(*rapid.T) {
				w.Create(&resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: shared}})
			},
			"claim is deleted": func(t *rapid.T) { model.Delete[*resourcev1.ResourceClaim](w, someClaim(t)) },
			"pod comes": func(t *rapid.T) {
				w.Create(&corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: pod.Draw(t, "pod")},
					Spec: corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{
						{Name: "shared", ResourceClaimName: &shared}, {Name: "own", ResourceClaimTemplateName: &template}}},
				})
			},
			"scheduler": func(t *rapid.T) {
				p := model.Stored[*corev1.Pod](w)[pod.Draw(t, "pod")]
				if p == nil || p.Spec.NodeName != "" || p.DeletionTimestamp != nil {
					return
				}
				names, all := 0, model.Stored[*resourcev1.ResourceClaim](w)
				for name := range resourceclaim.PodClaims(p) {
					if c := all[name]; c == nil || c.DeletionTimestamp != nil {
						return
					}
					names++
				}
				if names < len(p.Spec.ResourceClaims) {
					return
				}
				for name := range resourceclaim.PodClaims(p) {
					allocate(w, name, p)
				}
				model.Update(w, p.Name, func(p *corev1.Pod) { p.Spec.NodeName = "n" })
			},
			"claim is allocated": func(t *rapid.T) { allocate(w, someClaim(t), nil) },
			"pod is bound by hand": func(t *rapid.T) {
				model.Update(w, pod.Draw(t, "pod"), func(p *corev1.Pod) {
					if p.DeletionTimestamp == nil {
						p.Spec.NodeName = "n"
					}
				})
			},
			"pod ends": func(t *rapid.T) {
				model.Update(w, pod.Draw(t, "pod"), func(p *corev1.Pod) {
					if p.Spec.NodeName != "" {
						p.Status.Phase = corev1.PodFailed
					}
				})
			},
			"pod is deleted": func(t *rapid.T) { model.Delete[*corev1.Pod](w, pod.Draw(t, "pod")) },
			"agent removes pod": func(t *rapid.T) {
				if p := model.Stored[*corev1.Pod](w)[pod.Draw(t, "pod")]; p != nil && p.DeletionTimestamp != nil {
					model.Delete[*corev1.Pod](w, p.Name, client.GracePeriodSeconds(0))
				}
			},
		}, func() {})
		w.Settle(0)
		claims := model.Stored[*resourcev1.ResourceClaim](w)
		for _, c := range claims {
			for _, ref := range c.Status.ReservedFor {
				if inNeed(w, ref) == nil {
					t.Fatalf("claim %s is reserved for %s, which does not need it", c.Name, ref.Name)
				}
			}
			if ref := metav1.GetControllerOf(c); ref != nil &&
				inNeed(w, resourcev1.ResourceClaimConsumerReference{Name: ref.Name, UID: ref.UID}) == nil {
				t.Fatalf("claim %s of %s, which does not need it, is left", c.Name, ref.Name)
			}
			if c.DeletionTimestamp != nil && len(c.Status.ReservedFor) == 0 {
				t.Fatalf("claim %s, which was deleted, is left", c.Name)
			}
		}
		for _, p := range model.Stored[*corev1.Pod](w) {
			if done(p) || p.DeletionTimestamp != nil {
				continue
			}
			if len(p.Status.ResourceClaimStatuses) == 0 || claims[*p.Status.ResourceClaimStatuses[0].ResourceClaimName] == nil {
				if model.Stored[*resourcev1.ResourceClaimTemplate](w)[template] != nil {
					t.Fatalf("%s has no claim of its own", p.Name)
				}
				continue // it cannot start anyway
			}
			for name := range resourceclaim.PodClaims(p) {
				if c := claims[name]; p.Spec.NodeName != "" && c != nil && c.Status.Allocation != nil &&
					!resourceclaim.IsReservedForPod(p, c, false) {
					t.Fatalf("%s has no reservation of %s", p.Name, c.Name)
				}
			}
		}
	})
}
