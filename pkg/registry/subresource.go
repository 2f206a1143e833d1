package registry

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/core"
	corevalidation "k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/apis/policy"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/cache"
)

// createSubresource is for the subresources that are posted to.
func (c *call) createSubresource(obj runtime.Object, o metav1.CreateOptions) (Result, error) {
	if err := c.mayCreate(c.Name); err != nil {
		return Result{}, err
	}
	switch in := obj.(type) {
	case *corev1.Binding:
		if c.Subresource == "binding" {
			return c.bind(in, o)
		}
	case *policyv1.Eviction:
		if c.Subresource == "eviction" {
			return c.evict(in, o)
		}
	case *authenticationv1.TokenRequest:
		if c.Subresource == "token" {
			return c.token(in, o)
		}
	}
	if c.Resource.Subresource(c.Subresource) == nil {
		return Result{}, c.noSubresource()
	}
	return Result{}, apierrors.NewBadRequest(fmt.Sprintf("a %T cannot be posted to %s/%s", obj, c.Resource.Plural, c.Subresource))
}

func done() Result {
	return Result{Object: &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess, Code: 201}, Created: true}
}

// topology is the labels that upstream's PodTopologyLabels gives a pod from its node.
var topology = []string{corev1.LabelTopologyZone, corev1.LabelTopologyRegion}

// bind assigns a pod to a node, once.
func (c *call) bind(b *corev1.Binding, o metav1.CreateOptions) (Result, error) {
	if b.Name != c.Name {
		return Result{}, apierrors.NewBadRequest("name in URL does not match name in Binding object")
	}
	internal := &core.Binding{ObjectMeta: b.ObjectMeta, Target: core.ObjectReference{Kind: b.Target.Kind, Name: b.Target.Name}}
	if errs := corevalidation.ValidatePodBinding(internal); len(errs) > 0 {
		return Result{}, apierrors.NewInvalid(core.Kind("Binding"), c.Name, errs)
	}
	if err := c.admitCreate(internal, &o); err != nil {
		return Result{}, err
	}
	labels := maps.Clone(internal.Labels)
	for _, l := range topology {
		if v, ok := c.nodeLabel(internal.Target.Name, l); ok {
			if labels == nil {
				labels = map[string]string{}
			}
			labels[l] = v
		}
	}
	w := &write{call: c, strategy: c.row.Strategy, options: metav1.UpdateOptions{DryRun: o.DryRun}, internal: true, force: true}
	w.change = func(e *cache.Entry) (client.Object, error) {
		pod := e.Object.DeepCopyObject().(*corev1.Pod)
		var refused error
		switch {
		case b.UID != "" && b.UID != pod.UID:
			return nil, uidMismatch(c.gr(), c.Name, b.UID, pod.UID)
		case b.ResourceVersion != "" && b.ResourceVersion != pod.ResourceVersion:
			return nil, apierrors.NewConflict(c.gr(), c.Name, fmt.Errorf(
				"Precondition failed: ResourceVersion in precondition: %v, ResourceVersion in object meta: %v", b.ResourceVersion, pod.ResourceVersion))
		case pod.DeletionTimestamp != nil:
			refused = fmt.Errorf("pod %s is being deleted, cannot be assigned to a host", pod.Name)
		case pod.Spec.NodeName != "":
			refused = fmt.Errorf("pod %v is already assigned to node %q", pod.Name, pod.Spec.NodeName)
		case len(pod.Spec.SchedulingGates) > 0:
			refused = fmt.Errorf("pod %v has non-empty .spec.schedulingGates", pod.Name)
		}
		if refused != nil {
			return nil, apierrors.NewConflict(schema.GroupResource{Resource: "pods/binding"}, c.Name, refused)
		}
		pod.Spec.NodeName = internal.Target.Name
		pod.Status.NominatedNodeName = ""
		pod.Annotations = merged(pod.Annotations, internal.Annotations)
		pod.Labels = merged(pod.Labels, labels)
		setCondition(pod, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue})
		return pod, nil
	}
	if _, err := w.run(); err != nil {
		return Result{}, err
	}
	return done(), nil
}

func merged(have, add map[string]string) map[string]string {
	if have == nil && len(add) > 0 {
		have = map[string]string{}
	}
	maps.Copy(have, add)
	return have
}

func (c *call) nodeLabel(node, label string) (string, bool) {
	nodes := c.kinds.Table().ByGVR(schema.GroupVersionResource{Version: "v1", Resource: "nodes"})
	if nodes == nil {
		return "", false
	}
	e := c.cache.Get(nodes, "", node)
	if e == nil {
		return "", false
	}
	v, ok := e.Object.GetLabels()[label]
	return v, ok
}

// setCondition adds or replaces a pod's condition; the transition time stays while the status does.
func setCondition(pod *corev1.Pod, c corev1.PodCondition) {
	c.LastTransitionTime = seconds(metav1.Now())
	i := slices.IndexFunc(pod.Status.Conditions, func(o corev1.PodCondition) bool { return o.Type == c.Type })
	if i < 0 {
		pod.Status.Conditions = append(pod.Status.Conditions, c)
		return
	}
	if pod.Status.Conditions[i].Status == c.Status {
		c.LastTransitionTime = pod.Status.Conditions[i].LastTransitionTime
	}
	pod.Status.Conditions[i] = c
}

// evict marks a pod as disrupted and deletes it. A budget for disruptions would be asked between the two checks
// of the pod's phase and the mark: pods that ended, or never ran, need none.
func (c *call) evict(in *policyv1.Eviction, o metav1.CreateOptions) (Result, error) {
	if in.Name != c.Name {
		return Result{}, apierrors.NewBadRequest("name in URL does not match name in Eviction object")
	}
	del := metav1.DeleteOptions{DryRun: o.DryRun}
	if d := in.DeleteOptions; d != nil {
		if d.IgnoreStoreReadErrorWithClusterBreakingPotential != nil && *d.IgnoreStoreReadErrorWithClusterBreakingPotential {
			return Result{}, apierrors.NewInvalid(policyv1.SchemeGroupVersion.WithKind("Eviction").GroupKind(), c.Name, field.ErrorList{
				field.Invalid(field.NewPath("deleteOptions", "ignoreStoreReadErrorWithClusterBreakingPotential"), true, "can not be set for pod eviction, try after removing the option")})
		}
		if len(d.DryRun) > 0 && len(o.DryRun) > 0 && !slices.Equal(d.DryRun, o.DryRun) {
			return Result{}, apierrors.NewBadRequest(fmt.Sprintf("Non-matching dry-run options in request and content: %v and %v", o.DryRun, d.DryRun))
		}
		del = *d.DeepCopy()
		if len(del.DryRun) == 0 {
			del.DryRun = o.DryRun
		}
	}
	c.dry = len(del.DryRun) > 0
	if err := c.admitCreate(&policy.Eviction{ObjectMeta: in.ObjectMeta, DeleteOptions: in.DeleteOptions}, &o); err != nil {
		return Result{}, err
	}
	if !c.dry {
		w := &write{call: c, strategy: c.Resource.Status, internal: true, force: true}
		w.change = func(e *cache.Entry) (client.Object, error) {
			if err := preconditions(c, e.Object, del.Preconditions); err != nil {
				return nil, err
			}
			pod := e.Object.DeepCopyObject().(*corev1.Pod)
			setCondition(pod, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
				Reason: "EvictionByEvictionAPI", Message: "Eviction API: evicting"})
			return pod, nil
		}
		res, err := w.run()
		if err != nil {
			return Result{}, err
		}
		if p := del.Preconditions; p != nil && p.ResourceVersion != nil {
			marked, err := res.Value()
			if err != nil {
				return Result{}, err
			}
			rv := marked.(client.Object).GetResourceVersion()
			p.ResourceVersion = &rv
		}
	}
	one := *c
	one.Subresource, one.verb = "", "delete"
	if _, rev, err := one.remove(del); err != nil {
		return Result{}, err
	} else if err := c.waitFor(c.ctx, rev); err != nil {
		return Result{}, err
	}
	return done(), nil
}

func preconditions(c *call, o client.Object, p *metav1.Preconditions) error {
	if p == nil {
		return nil
	}
	if p.UID != nil && *p.UID != "" && *p.UID != o.GetUID() {
		return apierrors.NewConflict(c.gr(), c.Name, fmt.Errorf(
			"the UID in the precondition (%s) does not match the UID in record (%s). The object might have been deleted and then recreated", *p.UID, o.GetUID()))
	}
	if p.ResourceVersion != nil && *p.ResourceVersion != "" && *p.ResourceVersion != o.GetResourceVersion() {
		return apierrors.NewConflict(c.gr(), c.Name, fmt.Errorf(
			"the ResourceVersion in the precondition (%s) does not match the ResourceVersion in record (%s). The object might have been modified", *p.ResourceVersion, o.GetResourceVersion()))
	}
	return nil
}

var errNoTokens = errors.New("this server has no key to sign service account tokens with")
