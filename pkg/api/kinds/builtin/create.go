package builtin

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	internal "k8s.io/kubernetes/pkg/apis/core"
	corevalidation "k8s.io/kubernetes/pkg/apis/core/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// unexpected returns the error for a body whose kind the subresource does not accept.
func unexpected(on kind.Parent, in runtime.Object, subresource string) error {
	r, _, _ := on.Target()
	return apierrors.NewBadRequest(fmt.Sprintf("a %T cannot be posted to %s/%s", in, r.Plural, subresource))
}

// topology lists the labels that upstream's PodTopologyLabels plugin copies from a node to its pods.
var topology = []string{corev1.LabelTopologyZone, corev1.LabelTopologyRegion}

// bind assigns an unassigned pod to a node.
func bind(_ context.Context, on kind.Parent, in runtime.Object, o metav1.CreateOptions) (runtime.Object, error) {
	r, _, name := on.Target()
	b, ok := in.(*corev1.Binding)
	if !ok {
		return nil, unexpected(on, in, "binding")
	}
	if b.Name != name {
		return nil, apierrors.NewBadRequest("name in URL does not match name in Binding object")
	}
	binding := &internal.Binding{
		ObjectMeta: b.ObjectMeta, Target: internal.ObjectReference{Kind: b.Target.Kind, Name: b.Target.Name},
	}
	if errs := corevalidation.ValidatePodBinding(binding); len(errs) > 0 {
		return nil, apierrors.NewInvalid(internal.Kind("Binding"), name, errs)
	}
	if err := on.Admit(binding, &o); err != nil {
		return nil, err
	}
	labels := maps.Clone(binding.Labels)
	for _, l := range topology {
		if v, ok := nodeLabel(on, binding.Target.Name, l); ok {
			if labels == nil {
				labels = map[string]string{}
			}
			labels[l] = v
		}
	}
	_, err := on.Change(func(stored client.Object) (client.Object, error) {
		pod := stored.(*corev1.Pod)
		var refused error
		switch {
		case b.UID != "" && b.UID != pod.UID:
			return nil, apierrors.NewConflict(r.GR(), name,
				fmt.Errorf("Precondition failed: UID in precondition: %v, UID in object meta: %v", b.UID, pod.UID))
		case b.ResourceVersion != "" && b.ResourceVersion != pod.ResourceVersion:
			return nil, apierrors.NewConflict(r.GR(), name, fmt.Errorf(
				"Precondition failed: ResourceVersion in precondition: %v, ResourceVersion in object meta: %v", b.ResourceVersion,
				pod.ResourceVersion))
		case pod.DeletionTimestamp != nil:
			refused = fmt.Errorf("pod %s is being deleted, cannot be assigned to a host", pod.Name)
		case pod.Spec.NodeName != "":
			refused = fmt.Errorf("pod %v is already assigned to node %q", pod.Name, pod.Spec.NodeName)
		case len(pod.Spec.SchedulingGates) > 0:
			refused = fmt.Errorf("pod %v has non-empty .spec.schedulingGates", pod.Name)
		}
		if refused != nil {
			return nil, apierrors.NewConflict(schema.GroupResource{Resource: "pods/binding"}, name, refused)
		}
		pod.Spec.NodeName = binding.Target.Name
		pod.Status.NominatedNodeName = ""
		pod.Annotations = merged(pod.Annotations, binding.Annotations)
		pod.Labels = merged(pod.Labels, labels)
		setCondition(pod, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue})
		return pod, nil
	})
	return nil, err
}

func merged(have, add map[string]string) map[string]string {
	if have == nil && len(add) > 0 {
		have = map[string]string{}
	}
	maps.Copy(have, add)
	return have
}

func nodeLabel(on kind.Parent, node, label string) (string, bool) {
	o := on.Read(corev1.SchemeGroupVersion.WithKind("Node"), "", node)
	if o == nil {
		return "", false
	}
	v, ok := o.GetLabels()[label]
	return v, ok
}

// setCondition sets a pod's condition. The transition time changes only with the status.
func setCondition(pod *corev1.Pod, c corev1.PodCondition) {
	c.LastTransitionTime = metav1.Time{Time: time.Now().Truncate(time.Second)} // as stored
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

// TokenIssuer is a kind.Parent that can issue tokens for its service account.
type TokenIssuer interface {
	IssueToken(in *authenticationv1.TokenRequest, o metav1.CreateOptions) (*authenticationv1.TokenRequest, error)
}

func issueToken(_ context.Context, on kind.Parent, in runtime.Object, o metav1.CreateOptions) (runtime.Object, error) {
	request, ok := in.(*authenticationv1.TokenRequest)
	if !ok {
		return nil, unexpected(on, in, "token")
	}
	issuer, ok := on.(TokenIssuer)
	if !ok {
		return nil, apierrors.NewServiceUnavailable("this server issues no tokens")
	}
	return issuer.IssueToken(request, o)
}
