// Package controller applies Resources to many clusters and reports their state. Four reconcilers each write their
// own objects only, so that none blocks another:
//
//	cluster    connects to Clusters                            writes Cluster.status
//	applied    applies Resources to clusters (the reconciler)  writes AppliedStates, and the objects on clusters
//	current    records the objects on clusters (the watcher)   writes CurrentStates
//	resource   summarizes the others' records                  writes Resource.status, removes Resources' finalizers
//
// On another API server, with CustomResourceDefinitions, resource also sets the revision and finalizer (accept).
//
// Its invariant: an AppliedState exists from before its object is created on a cluster until that object is
// deleted or orphaned. Nothing runs before the first Cluster or Resource exists.
package controller

import (
	"context"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/object"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/pull"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/readable"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/state"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/target"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/watch"
)

// Account is the identity that applies objects to the local cluster.
const Account = "appliedstate-controller"

// New declares the reconcilers. local is the client of the cluster that serves this API, with Account's identity;
// version is that cluster's version. tunnels holds the agents' connections, and is nil where agents cannot
// connect. Kubeconfigs are read only from the given namespaces.
func New(local client.WithWatch, version string, tunnels *pull.Hub,
	namespaces readable.Namespaces) []*engine.Reconciler {
	pool := target.NewPool(version)
	return []*engine.Reconciler{
		newClusters(pool, local, tunnels, namespaces), newApplied(pool), newCurrent(pool), newSummary(),
	}
}

// The indexes of Resources and AppliedStates.
const (
	byObject   = "kontrol.object"   // Resources by their target object
	byProvided = "kontrol.provided" // Resources of CustomResourceDefinitions by the kind they define
	byGroup    = "kontrol.group"    // Resources by the label LabelGroup
	byWave     = "kontrol.wave"     // Resources with a wave by the label LabelGroup
	byWaitsFor = "kontrol.waitsFor" // AppliedStates by the Resource that they wait for: on any cluster, and on theirs
	byNoKind   = "kontrol.noKind"   // AppliedStates that wait for a kind, by cluster
	byResource = kontrol.FieldResource
	byCluster  = kontrol.FieldCluster
)

// waitIndexes find AppliedStates by the reason of their wait.
func waitIndexes() []engine.Index {
	return []engine.Index{
		{Object: &kontrol.AppliedState{}, Name: byWaitsFor, Values: func(o client.Object) []string {
			a := &o.(*kontrol.AppliedState).State
			if a.WaitsFor == "" {
				return nil
			}
			return []string{a.WaitsFor, a.Cluster + "/" + a.WaitsFor}
		}},
		{Object: &kontrol.AppliedState{}, Name: byNoKind, Values: func(o client.Object) []string {
			a := &o.(*kontrol.AppliedState).State
			if a.Status != kontrol.ApplyWaiting || a.Reason != kontrol.ReasonNoKind {
				return nil
			}
			return []string{a.Cluster}
		}},
	}
}

func appliedIndexes() []engine.Index {
	return []engine.Index{
		{
			Object: &kontrol.AppliedState{},
			Name:   byResource,
			Values: func(o client.Object) []string { return []string{o.(*kontrol.AppliedState).State.Resource} },
		},
		{
			Object: &kontrol.AppliedState{},
			Name:   byCluster,
			Values: func(o client.Object) []string { return []string{o.(*kontrol.AppliedState).State.Cluster} },
		},
	}
}

func resourceIndexes() []engine.Index {
	return []engine.Index{
		{Object: &kontrol.Resource{}, Name: byObject, Values: func(o client.Object) []string {
			return []string{objectKey(kontrol.TargetOf(o.(*kontrol.Resource)))}
		}},
		{
			Object: &kontrol.Resource{},
			Name:   byProvided,
			Values: func(o client.Object) []string { return provided(o.(*kontrol.Resource)) },
		},
		{
			Object: &kontrol.Resource{},
			Name:   byGroup,
			Values: func(o client.Object) []string { return []string{"group/" + o.GetLabels()[kontrol.LabelGroup]} },
		},
		{Object: &kontrol.Resource{}, Name: byWave, Values: func(o client.Object) []string {
			if kontrol.WaveOf(o.(*kontrol.Resource)) == 0 {
				return nil
			}
			return []string{"group/" + o.GetLabels()[kontrol.LabelGroup]}
		}},
	}
}

// objectKey identifies an object on any cluster, regardless of its API version.
func objectKey(t kontrol.Target) string {
	return strings.Join([]string{t.Group(), t.Kind, t.Namespace, t.Name}, "/")
}

func provided(r *kontrol.Resource) []string {
	t := kontrol.TargetOf(r)
	if t.Kind != "CustomResourceDefinition" || t.Group() != "apiextensions.k8s.io" {
		return nil
	}
	spec, _ := object.Parse(r.Spec.Template.Raw)["spec"].(map[string]any)
	names, _ := spec["names"].(map[string]any)
	group, _ := spec["group"].(string)
	kind, _ := names["kind"].(string)
	return []string{group + "/" + kind}
}

// targets reports whether a Resource targets a cluster. c is nil if that Cluster does not exist.
func targets(r *kontrol.Resource, name string, c *kontrol.Cluster) bool {
	if r.Spec.ClusterName != "" {
		return r.Spec.ClusterName == name
	}
	s, err := metav1.LabelSelectorAsSelector(r.Spec.ClusterSelector)
	return c != nil && err == nil && s.Matches(labels.Set(c.Labels))
}

// clustersOf returns the sorted names of the clusters that a Resource targets.
func clustersOf(ctx context.Context, cache client.Reader, r *kontrol.Resource) (names []string, err error) {
	if r.Spec.ClusterName != "" {
		return []string{r.Spec.ClusterName}, nil
	}
	var all kontrol.ClusterList
	if err := cache.List(ctx, &all); err != nil {
		return nil, err
	}
	for i := range all.Items {
		if targets(r, all.Items[i].Name, &all.Items[i]) {
			names = append(names, all.Items[i].Name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// pairRequest returns the request for a Resource on a cluster: the name of its AppliedState and CurrentState.
func pairRequest(resource, cluster string) engine.Request {
	return engine.RequestFor("", kontrol.StateName(resource, cluster))
}

func pairOf(req engine.Request) watch.Pair {
	resource, cluster := kontrol.SplitStateName(req.Name)
	return watch.Pair{Resource: resource, Cluster: cluster}
}

// objectsOf returns a pair's Resource and Cluster and the record of what was applied. Objects that do not exist are
// nil.
func objectsOf(ctx context.Context, cache client.Reader, p watch.Pair) (r *kontrol.Resource, c *kontrol.Cluster,
	a *kontrol.AppliedState, err error) {
	if r, err = engine.Find[kontrol.Resource](ctx, cache, "", p.Resource); err != nil {
		return nil, nil, nil, err
	}
	if c, err = engine.Find[kontrol.Cluster](ctx, cache, "", p.Cluster); err != nil {
		return nil, nil, nil, err
	}
	a, err = engine.Find[kontrol.AppliedState](ctx, cache, "", kontrol.StateName(p.Resource, p.Cluster))
	return r, c, a, err
}

// inputOf returns what is recorded of a Resource on a cluster.
func inputOf(ctx context.Context, cache client.Reader, r *kontrol.Resource,
	cluster string) (in state.Input, err error) {
	in.Resource = r
	if in.Cluster, err = engine.Find[kontrol.Cluster](ctx, cache, "", cluster); err != nil {
		return in, err
	}
	name := kontrol.StateName(r.Name, cluster)
	a, err := engine.Find[kontrol.AppliedState](ctx, cache, "", name)
	if err != nil {
		return in, err
	}
	c, err := engine.Find[kontrol.CurrentState](ctx, cache, "", name)
	if a != nil {
		in.Applied = &a.State
	}
	if c != nil {
		in.Current = &c.State
	}
	return in, err
}

// pairsOfResource maps a Resource to the clusters that it targets, and to those it was applied to before.
func pairsOfResource(ctx context.Context, env engine.Env, o client.Object) []engine.Request {
	r, ok := o.(*kontrol.Resource)
	if !ok {
		return nil
	}
	names, err := clustersOf(ctx, env.Cache, r)
	if err != nil {
		return nil
	}
	var states kontrol.AppliedStateList
	if env.ByIndex(ctx, &states, "", byResource, r.Name) == nil {
		for i := range states.Items {
			names = append(names, states.Items[i].State.Cluster)
		}
	}
	slices.Sort(names)
	var out []engine.Request
	for _, n := range slices.Compact(names) {
		out = append(out, pairRequest(r.Name, n))
	}
	return out
}

// pairsOfCluster maps a Cluster to the Resources that target it, and to those that were applied to it before.
func pairsOfCluster(ctx context.Context, env engine.Env, o client.Object) (out []engine.Request) {
	c, ok := o.(*kontrol.Cluster)
	if !ok {
		return nil
	}
	var all kontrol.ResourceList
	if env.Cache.List(ctx, &all) == nil {
		for i := range all.Items {
			if targets(&all.Items[i], c.Name, c) {
				out = append(out, pairRequest(all.Items[i].Name, c.Name))
			}
		}
	}
	var states kontrol.AppliedStateList
	if env.ByIndex(ctx, &states, "", byCluster, c.Name) == nil {
		for i := range states.Items {
			out = append(out, pairRequest(states.Items[i].State.Resource, c.Name))
		}
	}
	return out
}

func desiredChanged(was, is client.Object) bool {
	a, b := was.(*kontrol.Resource), is.(*kontrol.Resource)
	return engine.SpecChanged(was, is) || was.GetUID() != is.GetUID() || a.Status.Approved != b.Status.Approved ||
		kontrol.IsAccepted(a) != kontrol.IsAccepted(b) ||
		was.GetLabels()[kontrol.LabelGroup] !=
			is.GetLabels()[kontrol.LabelGroup] || was.GetAnnotations()[kontrol.AnnotationWave] !=
		is.GetAnnotations()[kontrol.AnnotationWave]
}

// clusterChanged reports whether a Cluster's change affects how Resources are applied to it.
func clusterChanged(was, is client.Object) bool {
	a, b := was.(*kontrol.Cluster), is.(*kontrol.Cluster)
	return engine.SpecChanged(a, b) || placeChanged(a, b)
}

// placeChanged reports whether a Cluster's change affects which Resources target it, or their status.
func placeChanged(was, is client.Object) bool {
	a, b := was.(*kontrol.Cluster), is.(*kontrol.Cluster)
	return !labels.Equals(a.Labels, b.Labels) || ready(a) != ready(b)
}

// ready returns status and reason of a cluster's condition Ready, joined.
func ready(c *kontrol.Cluster) string {
	for _, r := range c.Status.Conditions {
		if r.Type == kontrol.ConditionReady {
			return string(r.Status) + r.Reason
		}
	}
	return ""
}

func subject(r *kontrol.Resource, cluster string) kontrol.Subject {
	return kontrol.Subject{
		Resource:    r.Name,
		ResourceUID: string(r.UID),
		ResourceID:  r.Status.ID,
		Cluster:     cluster,
		Target:      kontrol.TargetOf(r),
	}
}
