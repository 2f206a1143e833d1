package apiservices

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// automanaged is upstream's label of APIServices that the server manages.
const automanaged = "kube-aggregator.kubernetes.io/automanaged"

func managed(o ctrl.Object) bool { return o.GetLabels()[automanaged] != "" }

// groupPriorities are the priorities of upstream's groups. Groups of custom resources have 1000, as upstream.
var groupPriorities = map[string]int32{ //nolint:gochecknoglobals // a constant
	"": 18000, "apps": 17800, "events.k8s.io": 17750, "authentication.k8s.io": 17700, "authorization.k8s.io": 17600,
	"autoscaling": 17500,
	"batch":       17400, "certificates.k8s.io": 17300, "networking.k8s.io": 17200, "policy": 17100,
	"rbac.authorization.k8s.io": 17000,
	"storage.k8s.io":            16800, "apiextensions.k8s.io": 16700, "admissionregistration.k8s.io": 16700,
	"scheduling.k8s.io":   16600,
	"coordination.k8s.io": 16500, "node.k8s.io": 16300, "discovery.k8s.io": 16200, "flowcontrol.apiserver.k8s.io": 16100,
	"resource.k8s.io": 16200, "storagemigration.k8s.io": 15800,
}

// localSpec returns the spec of the APIService for a group and version that this server serves.
func localSpec(gv schema.GroupVersion) apiregistrationv1.APIServiceSpec {
	s := apiregistrationv1.APIServiceSpec{
		Group:                gv.Group,
		Version:              gv.Version,
		GroupPriorityMinimum: 1000,
		VersionPriority:      100,
	}
	if p, ok := groupPriorities[gv.Group]; ok {
		s.GroupPriorityMinimum, s.VersionPriority = p, 15
		switch gv {
		case schema.GroupVersion{Version: "v1"}:
			s.VersionPriority = 1
		case schema.GroupVersion{Group: "flowcontrol.apiserver.k8s.io", Version: "v1"},
			schema.GroupVersion{Group: "resource.k8s.io", Version: "v1"}:
			s.VersionPriority = 21
		case schema.GroupVersion{Group: "autoscaling", Version: "v2"}:
			s.VersionPriority = 30
		}
	}
	return s
}

// localVersions returns the groups and versions of a table by the name of their APIService. As upstream, it omits
// the group of APIService itself.
func localVersions(t *kind.Table) map[string]schema.GroupVersion {
	all := map[string]schema.GroupVersion{}
	add := func(gv schema.GroupVersion) { all[gv.Version+"."+gv.Group] = gv }
	for _, r := range t.All() {
		if r.Group != apiregistrationv1.GroupName {
			add(r.GroupVersion())
		}
	}
	add(schema.GroupVersion{Group: "authentication.k8s.io", Version: "v1"})
	add(schema.GroupVersion{Group: "authorization.k8s.io", Version: "v1"})
	return all
}

// ensureLocal writes an APIService for each local group and version, and deletes the managed APIServices of versions
// that are no longer served.
func (c *Controller) ensureLocal(ctx context.Context, cl ctrl.Client) error {
	want := localVersions(c.cfg.Kinds.Table())
	var list apiregistrationv1.APIServiceList
	if err := cl.List(ctx, &list); err != nil {
		return err
	}
	var errs []error
	for i := range list.Items {
		have := &list.Items[i]
		gv, served := want[have.Name]
		delete(want, have.Name)
		var err error
		switch {
		case !managed(have): // a client manages it
		case !served:
			err = cl.Delete(ctx, have, ctrl.Preconditions{UID: &have.UID})
		default:
			if spec := localSpec(gv); !equality.Semantic.DeepEqual(have.Spec, spec) {
				have = have.DeepCopy()
				have.Spec = spec
				err = cl.Update(ctx, have)
			}
		}
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) { // a conflict: the event retries
			errs = append(errs, fmt.Errorf("APIService %s: %w", have.Name, err))
		}
	}
	var g errgroup.Group // concurrent writes share the store's fsync
	g.SetLimit(16)
	for name, gv := range want {
		g.Go(func() error {
			s := &apiregistrationv1.APIService{
				ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{automanaged: "true"}}, Spec: localSpec(gv),
			}
			if err := cl.Create(ctx, s); err != nil && !apierrors.IsAlreadyExists(err) {
				return fmt.Errorf("APIService %s: %w", name, err)
			}
			return nil
		})
	}
	return errors.Join(append(errs, g.Wait())...)
}

// writeTrust writes the ConfigMap from which aggregated API servers read the CAs and headers to trust.
func (c *Controller) writeTrust(ctx context.Context, cl ctrl.Client) error {
	want := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "extension-apiserver-authentication"},
		Data: map[string]string{
			"client-ca-file":                     string(c.trust.ClientCAs()),
			"requestheader-client-ca-file":       string(c.trust.FrontProxyCAs),
			"requestheader-allowed-names":        `["` + FrontProxy + `"]`,
			"requestheader-username-headers":     `["X-Remote-User"]`,
			"requestheader-uid-headers":          `["X-Remote-Uid"]`,
			"requestheader-group-headers":        `["X-Remote-Group"]`,
			"requestheader-extra-headers-prefix": `["X-Remote-Extra-"]`,
		},
	}
	have := &corev1.ConfigMap{}
	err := cl.Get(ctx, ctrl.ObjectKeyFromObject(want), have)
	switch {
	case apierrors.IsNotFound(err):
		return cl.Create(ctx, want)
	case err != nil || equality.Semantic.DeepEqual(have.Data, want.Data):
		return err
	}
	have = have.DeepCopy()
	have.Data = want.Data
	return cl.Update(ctx, have)
}
