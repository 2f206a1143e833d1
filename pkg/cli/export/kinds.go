package export

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
)

type kind struct {
	resource   schema.GroupVersionResource
	namespaced bool
	// status is set if the kind has the status subresource, so that users cannot set the field.
	status bool
}

// name is the base name of the kind's file, such as deployments.apps.
func (k kind) name() string { return k.resource.GroupResource().String() }

// stage is a part of an export. Apply the stages in order.
type stage int

const (
	definitions stage = iota
	clusterWide
	inNamespaces
	admission
)

var stageDirs = map[stage]string{
	definitions:  "1-definitions",
	clusterWide:  "2-cluster",
	inNamespaces: "3-namespaces",
	admission:    "4-admission",
}

// omitted are kinds whose objects nodes, controllers, drivers and servers create, or that record events.
var omitted = map[string]bool{
	"events": true, "events.events.k8s.io": true, "nodes": true, "componentstatuses": true,
	"leases.coordination.k8s.io": true, "leasecandidates.coordination.k8s.io": true, "controllerrevisions.apps": true,
	"csinodes.storage.k8s.io": true, "csistoragecapacities.storage.k8s.io": true, "volumeattachments.storage.k8s.io": true,
	"certificatesigningrequests.certificates.k8s.io": true, "podcertificaterequests.certificates.k8s.io": true,
	"ipaddresses.networking.k8s.io": true, "resourceslices.resource.k8s.io": true,
	"storageversions.internal.apiserver.k8s.io":        true,
	"storageversionmigrations.storagemigration.k8s.io": true, "appliedstates.kontrol.coracle.dev": true,
	"currentstates.kontrol.coracle.dev": true,
}

// ranks orders the kinds of a stage: first kinds that others refer to, last kinds that restrict others. The default
// is 50.
var ranks = map[string]int{
	"namespaces": 0, "priorityclasses.scheduling.k8s.io": 10, "storageclasses.storage.k8s.io": 10,
	"runtimeclasses.node.k8s.io":             10,
	"clusterroles.rbac.authorization.k8s.io": 20, "clusterrolebindings.rbac.authorization.k8s.io": 21,
	"persistentvolumes": 30,
	"serviceaccounts":   0, "secrets": 10, "configmaps": 10, "roles.rbac.authorization.k8s.io": 20,
	"rolebindings.rbac.authorization.k8s.io": 21,
	"persistentvolumeclaims":                 30, "services": 40, "limitranges": 90, "resourcequotas": 91,
}

func (k kind) rank() int {
	if rank, ok := ranks[k.name()]; ok {
		return rank
	}
	return 50
}

func (k kind) stage() stage {
	switch {
	case k.namespaced:
		return inNamespaces
	case k.name() == "customresourcedefinitions.apiextensions.k8s.io":
		return definitions
	case k.resource.Group == "admissionregistration.k8s.io":
		return admission
	}
	return clusterWide
}

// discover returns the kinds that can be listed and created, in the preferred version of their group, sorted in
// output order. The second result has the groups that do not respond.
func discover(ctx context.Context,
	client discovery.DiscoveryInterfaceWithContext) ([]kind, map[schema.GroupVersion]error, error) {
	groups, lists, err := client.ServerGroupsAndResourcesWithContext(ctx)
	var silent map[schema.GroupVersion]error
	if failed := (*discovery.ErrGroupDiscoveryFailed)(nil); errors.As(err, &failed) {
		silent = failed.Groups
	} else if apierrors.IsForbidden(err) {
		return nil, nil, fmt.Errorf("may not read which kinds the cluster has: export with the kubeconfig of an "+
			"administrator: %w", err)
	} else if err != nil {
		return nil, nil, fmt.Errorf("could not read which kinds the cluster has: %w", err)
	}
	versions := map[string]*metav1.APIResourceList{}
	for _, l := range lists {
		versions[l.GroupVersion] = l
	}
	found := map[schema.GroupResource]kind{}
	for _, g := range groups {
		order := []string{g.PreferredVersion.GroupVersion}
		for _, v := range g.Versions {
			order = append(order, v.GroupVersion)
		}
		for _, v := range order {
			if l := versions[v]; l != nil {
				if err := addKinds(found, l); err != nil {
					return nil, nil, err
				}
			}
		}
	}
	return slices.SortedFunc(maps.Values(found), func(a, b kind) int {
		return cmp.Or(cmp.Compare(a.stage(), b.stage()), cmp.Compare(a.rank(), b.rank()),
			cmp.Compare(a.resource.Group, b.resource.Group), cmp.Compare(a.resource.Resource, b.resource.Resource))
	}), silent, nil
}

// addKinds adds the kinds of one version. Kinds found in a preferred version stay.
func addKinds(found map[schema.GroupResource]kind, l *metav1.APIResourceList) error {
	gv, err := schema.ParseGroupVersion(l.GroupVersion)
	if err != nil {
		return err
	}
	status := map[string]bool{}
	for _, r := range l.APIResources {
		status[r.Name] = true
	}
	for _, r := range l.APIResources {
		k := kind{resource: gv.WithResource(r.Name), namespaced: r.Namespaced, status: status[r.Name+"/status"]}
		_, there := found[k.resource.GroupResource()]
		if there || omitted[k.name()] || !slices.Contains(r.Verbs, "list") || !slices.Contains(r.Verbs, "create") {
			continue
		}
		// The name becomes a file name, so a hostile server must not choose a path.
		if bad := apivalidation.NameIsDNSSubdomain(k.name(), false); len(bad) > 0 {
			return fmt.Errorf("the cluster says that it has a kind %q: %s", k.name(), bad[0])
		}
		found[k.resource.GroupResource()] = k
	}
	return nil
}
