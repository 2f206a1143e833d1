package admission

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/auth/nodeidentifier"
)

// ownNode keeps a node's credential from changing fields of its Node that others act on: its pod CIDRs, to which other
// nodes route, and labels and annotations of the systems' groups (rest.coracle.dev/address is where the REST facade
// sends HTTP requests). Upstream's NodeRestriction has no such rules, because upstream leaves routes to others.
type ownNode struct{ nodeidentifier.NodeIdentifier }

var _ admission.ValidationInterface = ownNode{}

// Handles implements admission.Interface.
func (ownNode) Handles(o admission.Operation) bool {
	return o == admission.Create || o == admission.Update
}

func (p ownNode) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	// Of every subresource: with the status, too, a node can write labels and annotations.
	if a.GetResource().GroupResource() != core.Resource("nodes") {
		return nil
	}
	if _, isNode := p.NodeIdentity(a.GetUserInfo()); !isNode {
		return nil
	}
	node, ok := a.GetObject().(*core.Node)
	if !ok {
		return nil
	}
	old, ok := a.GetOldObject().(*core.Node)
	if !ok {
		old = &core.Node{}
	}
	if !slices.Equal(old.Spec.PodCIDRs, node.Spec.PodCIDRs) {
		return admission.NewForbidden(a, errors.New("a node may not set its own podCIDR"))
	}
	if !maps.Equal(ofSystems(old.Labels), ofSystems(node.Labels)) ||
		!maps.Equal(ofSystems(old.Annotations), ofSystems(node.Annotations)) {
		return admission.NewForbidden(a, errors.New("a node may not set labels and annotations of *.coracle.dev on itself"))
	}
	return nil
}

// ofSystems returns the labels or annotations in groups below coracle.dev, which belong to systems.
func ofSystems(all map[string]string) map[string]string {
	out := map[string]string{}
	for key, value := range all {
		if group, _, _ := strings.Cut(key, "/"); strings.HasSuffix(group, ".coracle.dev") {
			out[key] = value
		}
	}
	return out
}
