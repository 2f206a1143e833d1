package controller

import (
	"context"
	"fmt"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/state"
)

// maxChain limits how many Resources the search for a dependency cycle visits.
const maxChain = 1000

// wait says why a Resource waits on a cluster: reason, message and the name of the other Resource. All are empty
// if it need not wait.
type wait struct{ reason, text, on string }

// waits returns the first dependency that is not in sync on the cluster: spec.dependsOn, the object's namespace
// and kind, then lower waves.
func (r *applied) waits(ctx context.Context, res *kontrol.Resource, c *kontrol.Cluster) (wait, error) {
	for _, name := range res.Spec.DependsOn {
		dep, err := engine.Find[kontrol.Resource](ctx, r.Cache, "", name)
		switch {
		case err != nil:
			return wait{}, err
		case dep == nil:
			return wait{
				kontrol.ReasonDependency,
				fmt.Sprintf("the Resource depends on Resource %s, which does not exist: create it", name), name,
			}, nil
		case !targets(dep, c.Name, c):
			return wait{
				kontrol.ReasonDependency,
				fmt.Sprintf("the Resource depends on Resource %s, which is not for cluster %s", name, c.Name), name,
			}, nil
		}
		if cycle, err := r.reaches(ctx, dep, res.Name); cycle || err != nil {
			return wait{
				kontrol.ReasonDependencyCycle,
				fmt.Sprintf("the Resource depends on Resource %s, which depends on this one: remove one of the dependencies",
					name), name,
			}, err
		}
		if synced, err := r.synced(ctx, dep, c); !synced || err != nil {
			return wait{kontrol.ReasonDependency, fmt.Sprintf("waiting for Resource %s to be in sync", name), name}, err
		}
	}
	first, err := r.implied(ctx, res)
	if err != nil {
		return wait{}, err
	}
	for i := range first {
		f := &first[i]
		if f.Name == res.Name || f.DeletionTimestamp != nil || !targets(f, c.Name, c) {
			continue
		}
		if synced, err := r.synced(ctx, f, c); !synced || err != nil {
			return wait{
				kontrol.ReasonDependency, fmt.Sprintf("waiting for %s of Resource %s to be in sync", kontrol.TargetOf(f), f.Name),
				f.Name,
			}, err
		}
	}
	return r.waves(ctx, res, c)
}

// implied returns the Resources that create the object's Namespace or define its kind.
func (r *applied) implied(ctx context.Context, res *kontrol.Resource) ([]kontrol.Resource, error) {
	t := kontrol.TargetOf(res)
	var namespaces, definitions kontrol.ResourceList
	if t.Namespace != "" {
		if err := r.ByIndex(ctx, &namespaces, "", byObject,
			objectKey(kontrol.Target{APIVersion: "v1", Kind: "Namespace", Name: t.Namespace})); err != nil {
			return nil, err
		}
	}
	if err := r.ByIndex(ctx, &definitions, "", byProvided, t.Group()+"/"+t.Kind); err != nil {
		return nil, err
	}
	return append(namespaces.Items, definitions.Items...), nil
}

// waves returns a wait for the first Resource of the group in a lower wave that is not in sync.
func (r *applied) waves(ctx context.Context, res *kontrol.Resource, c *kontrol.Cluster) (wait, error) {
	var others kontrol.ResourceList
	key, index, wave := "group/"+res.Labels[kontrol.LabelGroup], byWave, kontrol.WaveOf(res)
	if wave > 0 {
		index = byGroup // Resources without a wave have wave 0
	}
	if err := r.ByIndex(ctx, &others, "", index, key); err != nil {
		return wait{}, err
	}
	for i := range others.Items {
		o := &others.Items[i]
		if kontrol.WaveOf(o) >= wave || o.DeletionTimestamp != nil || !targets(o, c.Name, c) {
			continue
		}
		if synced, err := r.synced(ctx, o, c); !synced || err != nil {
			return wait{
				kontrol.ReasonDependency,
				fmt.Sprintf("waiting for Resource %s of wave %d to be in sync", o.Name, kontrol.WaveOf(o)), o.Name,
			}, err
		}
	}
	return wait{}, nil
}

// synced reports whether a Resource is in sync on a cluster, and its object is not Progressing. Drift of an
// existing object does not delay its dependents.
func (r *applied) synced(ctx context.Context, res *kontrol.Resource, c *kontrol.Cluster) (bool, error) {
	in, err := inputOf(ctx, r.Cache, res, c.Name)
	if in.Applied == nil || in.Current == nil || err != nil {
		return false, err
	}
	st, _ := state.Of(in)
	return (st == kontrol.StateSynced || st == kontrol.StateDrifted && in.Current.Present) &&
		in.Current.Health != kontrol.HealthProgressing, nil
}

func (r *applied) reaches(ctx context.Context, from *kontrol.Resource, name string) (bool, error) {
	seen := map[string]bool{}
	next := []*kontrol.Resource{from}
	for len(next) > 0 && len(seen) < maxChain {
		res := next[0]
		next = next[1:]
		for _, d := range res.Spec.DependsOn {
			if d == name {
				return true, nil
			}
			if seen[d] {
				continue
			}
			seen[d] = true
			dep, err := engine.Find[kontrol.Resource](ctx, r.Cache, "", d)
			if err != nil {
				return false, err
			}
			if dep != nil {
				next = append(next, dep)
			}
		}
	}
	return false, nil
}
