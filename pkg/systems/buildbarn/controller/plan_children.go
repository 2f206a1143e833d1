package controller

import (
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	buildbarn "github.com/coracle-dev/coracle/apis/buildbarn/v1alpha1"
)

// adopt returns a copy of a child with its labels, which the caller changes as wanted. ok is false if the child has
// another owner, or if it does not exist; then adopt plans to create it.
func adopt[T interface {
	comparable
	client.Object
}](p *plan, want, have T) (next T, ok bool) {
	var none T
	if have == none {
		p.create(want)
		return none, false
	}
	if !p.owns(have) {
		return none, false
	}
	next = have.DeepCopyObject().(T)
	next.SetLabels(merged(have.GetLabels(), want.GetLabels()))
	return next, true
}

func (p *plan) deployment(hash string, replicas int32) {
	want, have := deployment(p.part, p.o.Part, p.mounts(hash), replicas), p.o.Deployment
	next, ok := adopt(p, want, have)
	if !ok {
		return
	}
	next.Spec = want.Spec
	next.Spec.Selector = have.Spec.Selector // immutable
	if w, ok := p.part.(*buildbarn.BuildbarnWorker); ok && w.Spec.Scale != nil && have.Spec.Replicas != nil {
		p.Retire = max(*have.Spec.Replicas-replicas, 0)
	}
	p.change(have, next)
}

func (p *plan) statefulSet(s *buildbarn.BuildbarnStorage, hash string, replicas int32) {
	want, have := statefulSet(s, p.o.Part, p.mounts(hash), replicas), p.o.StatefulSet
	p.sharding(replicas)
	if have == nil {
		p.condition(buildbarn.ConditionClaimsValid, metav1.ConditionTrue, "AsSpecified", "")
	}
	next, ok := adopt(p, want, have)
	if !ok {
		return
	}
	p.claims(want, have)
	next.Spec.Replicas, next.Spec.Template = want.Spec.Replicas, want.Spec.Template
	next.Spec.UpdateStrategy.Type = want.Spec.UpdateStrategy.Type
	p.change(have, next)
}

func merged(have, add map[string]string) map[string]string {
	out := map[string]string{}
	maps.Copy(out, have)
	maps.Copy(out, add)
	return out
}

// claims compares the wanted claim sizes with the StatefulSet's, which are immutable.
func (p *plan) claims(want, have *appsv1.StatefulSet) {
	for _, w := range want.Spec.VolumeClaimTemplates {
		i := slices.IndexFunc(have.Spec.VolumeClaimTemplates, func(c corev1.PersistentVolumeClaim) bool {
			return c.Name == w.Name
		})
		if i < 0 {
			p.condition(buildbarn.ConditionClaimsValid, metav1.ConditionFalse, "ClaimAdded",
				fmt.Sprintf("the claim %s cannot be added to the StatefulSet that is there: delete it with --cascade=orphan, and "+
					"it is made again", w.Name))
			return
		}
		to, from := w.Spec.Resources.Requests[corev1.ResourceStorage],
			have.Spec.VolumeClaimTemplates[i].Spec.Resources.Requests[corev1.ResourceStorage]
		switch to.Cmp(from) {
		case -1:
			p.condition(buildbarn.ConditionClaimsValid, metav1.ConditionFalse, "ClaimShrunk",
				fmt.Sprintf("the claim %s cannot shrink from %s to %s: it stays as it is; set the size back, or delete this "+
					"object and its claims", w.Name, from.String(), to.String()))
			return
		case 1:
			p.condition(buildbarn.ConditionClaimsValid, metav1.ConditionFalse, "ClaimGrown",
				fmt.Sprintf("the claim %s stays at %s: to have %s, patch the claims, then delete the StatefulSet with "+
					"--cascade=orphan, and it is made again", w.Name, from.String(), to.String()))
			return
		}
	}
	p.condition(buildbarn.ConditionClaimsValid, metav1.ConditionTrue, "AsSpecified", "")
}

// sharding warns when the number of shards changes. Rendezvous hashing chooses a blob's shard, so the share of an
// added or removed shard is lost.
func (p *plan) sharding(replicas int32) {
	was := p.Status.Shards
	p.Status.Shards = replicas
	switch {
	case was == 0 || replicas == 0:
		p.condition(buildbarn.ConditionSharding, metav1.ConditionTrue, "AsConfigured", "")
	case was != replicas:
		more, fewer := max(was, replicas), min(was, replicas)
		p.condition(buildbarn.ConditionSharding, metav1.ConditionFalse, "Resharding",
			fmt.Sprintf("the number of storage pods changed from %d to %d: about %d%% of the cache is lost and "+
				"will be built again", was, replicas, 100*(more-fewer)/more))
	}
}

func (p *plan) service() {
	want := service(p.part, p.o.Part)
	if want == nil {
		return
	}
	have := p.o.Service
	next, ok := adopt(p, want, have)
	if !ok {
		return
	}
	next.Spec.Selector, next.Spec.Ports = want.Spec.Selector, want.Spec.Ports
	next.Spec.PublishNotReadyAddresses = want.Spec.PublishNotReadyAddresses
	if want.Spec.ClusterIP != corev1.ClusterIPNone {
		next.Spec.Type = want.Spec.Type
	}
	if next.Spec.Type != corev1.ServiceTypeClusterIP {
		for i := range next.Spec.Ports {
			for _, port := range have.Spec.Ports {
				if port.Name == next.Spec.Ports[i].Name {
					next.Spec.Ports[i].NodePort = port.NodePort
				}
			}
		}
	}
	p.change(have, next)
}

// ingress plans the Ingress, unless another Ingress has its host. Of two, the older one wins, then the one whose name
// sorts first.
func (p *plan) ingress() {
	have, host := p.o.Ingress, buildbarn.HostOf(p.part)
	if host == "" {
		if have != nil && metav1.IsControlledBy(have, p.o.Part) && have.DeletionTimestamp == nil {
			p.Delete = append(p.Delete, have)
		}
		p.forget(buildbarn.ConditionIngressReady)
		return
	}
	if have != nil && !p.owns(have) {
		return
	}
	for _, rival := range p.o.Rivals {
		if have == nil || before(rival, have) {
			p.condition(buildbarn.ConditionIngressReady, metav1.ConditionFalse, "HostTaken",
				fmt.Sprintf("the Ingress %s/%s has the host %s already: set ingressHost to another one, or delete that Ingress",
					rival.Namespace, rival.Name, host))
			if have != nil && have.DeletionTimestamp == nil {
				p.Delete = append(p.Delete, have)
			}
			return
		}
	}
	p.condition(buildbarn.ConditionIngressReady, metav1.ConditionTrue, "HostFree", "")
	want := ingress(p.part, p.o.Part, host)
	next, ok := adopt(p, want, have)
	if !ok {
		return
	}
	next.Spec.Rules, next.Spec.DefaultBackend = want.Spec.Rules, nil
	p.change(have, next)
}

func before(a, b *networkingv1.Ingress) bool {
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return a.Namespace+"/"+a.Name < b.Namespace+"/"+b.Name
}
