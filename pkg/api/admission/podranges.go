package admission

import (
	"context"
	"errors"
	"slices"

	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/auth/nodeidentifier"
)

// podRanges forbids that a node sets its own pod CIDR, because other nodes would route it. Upstream's
// NodeRestriction has no such rule, because upstream does not set up routes.
type podRanges struct{ nodeidentifier.NodeIdentifier }

var _ admission.ValidationInterface = podRanges{}

// Handles implements admission.Interface.
func (podRanges) Handles(o admission.Operation) bool {
	return o == admission.Create || o == admission.Update
}

// Validate implements admission.ValidationInterface.
func (p podRanges) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != core.Resource("nodes") || a.GetSubresource() != "" {
		return nil
	}
	if _, isNode := p.NodeIdentity(a.GetUserInfo()); !isNode {
		return nil
	}
	node, ok := a.GetObject().(*core.Node)
	if !ok {
		return nil
	}
	var before []string
	if old, ok := a.GetOldObject().(*core.Node); ok {
		before = old.Spec.PodCIDRs
	}
	if !slices.Equal(before, node.Spec.PodCIDRs) {
		return admission.NewForbidden(a, errors.New("a node may not set its own podCIDR"))
	}
	return nil
}
