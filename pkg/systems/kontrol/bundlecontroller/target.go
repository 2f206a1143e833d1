package bundlecontroller

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/bundle"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/placement"
)

// target is a cluster of the Bundle, with the state of its rollout.
type target struct {
	cluster *kontrol.Cluster
	name    string
	was     kontrol.BundleTarget         // from the Bundle's status
	has     map[string]*kontrol.Resource // by bundle.Object.Key
	waves   []wave
	extra   []*kontrol.Resource // to delete: the content no longer has their objects
	leaving string              // describes a Resource that is being deleted
	next    int                 // index in waves of the first one that is not done

	reachable bool
	why       string
	failure   string
}

type wave struct {
	number  int
	objects int
	write   []*kontrol.Resource // to create or update
	pending string              // describes an object that is not healthy yet
	failed  string
}

func (w *wave) done() bool { return len(w.write) == 0 && w.pending == "" }

func (t *target) begun(content string) bool { return t.was.Content == content }
func (t *target) done() bool                { return t.next == len(t.waves) && len(t.extra) == 0 && t.leaving == "" }

// unhealthy reports whether the cluster has Resources of the Bundle and it is unreachable or one is not healthy.
func (t *target) unhealthy() bool {
	return len(t.has) > 0 &&
		(!t.reachable ||
			slices.ContainsFunc(slices.Collect(maps.Values(t.has)), func(r *kontrol.Resource) bool {
				return notHealthy(r) != ""
			}))
}

// targetsOf returns the Bundle's clusters in rollout order, and the Resources to delete because the Bundle no longer
// selects their cluster.
func targetsOf(o Observed) (list []*target, gone []*kontrol.Resource) {
	b := o.Bundle
	byCluster := map[string]map[string]*kontrol.Resource{}
	for _, r := range o.Resources {
		t := kontrol.TargetOf(r)
		if byCluster[r.Spec.ClusterName] == nil {
			byCluster[r.Spec.ClusterName] = map[string]*kontrol.Resource{}
		}
		byCluster[r.Spec.ClusterName][(&bundle.Object{Target: t}).Key()] = r
	}
	was := map[string]kontrol.BundleTarget{}
	for _, t := range b.Status.Targets {
		was[t.Name] = t
	}
	add := func(name string, c *kontrol.Cluster) {
		t := &target{cluster: c, name: name, was: was[name], has: byCluster[name]}
		t.fill(o)
		list = append(list, t)
		delete(byCluster, name)
	}
	if b.Spec.ClusterName != "" {
		i := slices.IndexFunc(o.Clusters, func(c *kontrol.Cluster) bool { return c.Name == b.Spec.ClusterName })
		if i < 0 {
			add(b.Spec.ClusterName, nil)
		} else {
			add(b.Spec.ClusterName, o.Clusters[i])
		}
	} else {
		for _, c := range ordered(b, o.Clusters) {
			add(c.Name, c)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(byCluster)) {
		gone = append(gone, living(byCluster[name])...)
	}
	return list, gone
}

func living(all map[string]*kontrol.Resource) (list []*kontrol.Resource) {
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if all[key].DeletionTimestamp == nil {
			list = append(list, all[key])
		}
	}
	return list
}

// ordered returns the clusters that the Bundle selects, by the first selector of spec.rollout.order that matches, then
// by name.
func ordered(b *kontrol.Bundle, all []*kontrol.Cluster) (list []*kontrol.Cluster) {
	place := map[string]int{}
	for _, c := range all {
		if c.DeletionTimestamp != nil || !placement.Matches("", b.Spec.ClusterSelector, c) {
			continue
		}
		i := slices.IndexFunc(b.Spec.Rollout.Order, func(s metav1.LabelSelector) bool { return placement.Matches("", &s, c) })
		if i < 0 {
			i = len(b.Spec.Rollout.Order)
		}
		place[c.Name] = i
		list = append(list, c)
	}
	slices.SortFunc(list, func(x, y *kontrol.Cluster) int {
		if d := place[x.Name] - place[y.Name]; d != 0 {
			return d
		}
		return strings.Compare(x.Name, y.Name)
	})
	return list
}

// fill compares the cluster's Resources with the desired ones, wave by wave.
func (t *target) fill(o Observed) {
	kept := map[string]bool{}
	for i := range o.Objects {
		object := &o.Objects[i]
		if n := len(t.waves); n == 0 || t.waves[n-1].number != object.Wave {
			t.waves = append(t.waves, wave{number: object.Wave})
		}
		w := &t.waves[len(t.waves)-1]
		w.objects++
		kept[object.Key()] = true
		has := t.has[object.Key()]
		want := resource(o.Bundle, t.name, object)
		switch {
		case has != nil && has.DeletionTimestamp != nil:
			w.pending = "Resource " + has.Name + " is being deleted"
		case has == nil || !same(has, want):
			w.write = append(w.write, merged(has, want))
		default:
			if text := notHealthy(has); text != "" && w.pending == "" {
				w.pending = object.Target.String() + ": " + text
			}
			if text := failedOf(has, o.Failed); text != "" && w.failed == "" {
				w.failed = fmt.Sprintf("wave %d: %s: %s", w.number, object.Target, text)
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(t.has)) {
		switch r := t.has[key]; {
		case kept[key]:
		case r.DeletionTimestamp == nil:
			t.extra = append(t.extra, r)
		default:
			t.leaving = "Resource " + r.Name + " is being deleted"
			if r.Status.Message != "" {
				t.leaving += ": " + r.Status.Message
			}
		}
	}
	t.next = slices.IndexFunc(t.waves, func(w wave) bool { return !w.done() })
	if t.next < 0 {
		t.next = len(t.waves)
	}
}

// notHealthy returns why a Resource is not applied or its object is not healthy; empty if it is. Drift does not hold
// up a rollout.
func notHealthy(r *kontrol.Resource) string {
	s := &r.Status
	switch {
	case s.ObservedGeneration != r.Generation:
		return "not applied yet"
	case s.State != kontrol.StateSynced && s.State != kontrol.StateDrifted:
		return s.Message
	case !meta.IsStatusConditionTrue(s.Conditions, kontrol.ConditionHealthy):
		c := meta.FindStatusCondition(s.Conditions, kontrol.ConditionHealthy)
		if c == nil || c.Message == "" {
			return "not healthy yet"
		}
		return c.Message
	}
	return ""
}

// failedOf returns why a Resource has failed; empty if it has not. refused has the errors of clusters, by Resource.
func failedOf(r *kontrol.Resource, refused map[string]string) string {
	s := &r.Status
	if s.ObservedGeneration != r.Generation {
		return ""
	}
	if s.State == kontrol.StateConflict || s.State == kontrol.StateDegraded {
		return s.Message
	}
	if c := meta.FindStatusCondition(s.Conditions, kontrol.ConditionHealthy); c != nil &&
		c.Reason == string(kontrol.HealthDegraded) {
		return c.Message
	}
	return refused[r.Name]
}
