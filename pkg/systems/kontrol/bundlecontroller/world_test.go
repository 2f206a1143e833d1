package bundlecontroller

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/bundle"
)

// world is a Bundle with its clusters and Resources. It applies plans.
type world struct {
	o      Observed
	now    time.Time
	writes []string // cluster/name, in order
}

func objects(version string, waves ...string) (list []bundle.Object) { // NAME@WAVE
	for _, w := range waves {
		name, number, _ := strings.Cut(w, "@")
		o := bundle.Object{Target: kontrol.Target{APIVersion: "v1", Kind: "ConfigMap", Namespace: "shop", Name: name}}
		fmt.Sscan(number, &o.Wave)
		o.JSON = fmt.Appendf(nil,
			`{"apiVersion":"v1","data":{"version":%q},"kind":"ConfigMap","metadata":{"name":%q,"namespace":"shop"}}`, version,
			name)
		list = append(list, o)
	}
	bundle.Sort(list)
	return list
}

func newWorld(clusters ...string) *world {
	w := &world{now: time.Unix(1e9, 0)}
	w.o.Bundle = &kontrol.Bundle{
		ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "b", Generation: 1},
		Spec:       kontrol.BundleSpec{ClusterSelector: &metav1.LabelSelector{}},
	}
	kontrol.DefaultBundle(w.o.Bundle)
	w.o.Failed = map[string]string{}
	for _, c := range clusters {
		w.o.Clusters = append(w.o.Clusters, &kontrol.Cluster{
			ObjectMeta: metav1.ObjectMeta{Name: c, Labels: map[string]string{"name": c}},
		})
		w.reach(c, true)
	}
	return w
}

func (w *world) reach(cluster string, yes bool) {
	status := metav1.ConditionFalse
	if yes {
		status = metav1.ConditionTrue
	}
	for _, c := range w.o.Clusters {
		if c.Name == cluster {
			c.Status.Conditions = []metav1.Condition{{Type: kontrol.ConditionReady, Status: status, Message: "does not answer"}}
		}
	}
}

func (w *world) content(version string, waves ...string) {
	w.o.Objects = objects(version, waves...)
	w.o.Content = bundle.Digest(w.o.Objects, &w.o.Bundle.Spec)
}

// step plans once, and applies the status, the writes and the deletions.
func (w *world) step() kontrol.BundleStatus {
	s := Plan(w.o, w.now)
	w.o.Bundle.Status = s.Status
	for _, r := range s.Delete {
		w.o.Resources = slices.DeleteFunc(w.o.Resources, func(x *kontrol.Resource) bool { return x.Name == r.Name })
		w.writes = append(w.writes, "-"+r.Spec.ClusterName+"/"+kontrol.TargetOf(r).Name)
	}
	for _, r := range s.Write {
		w.writes = append(w.writes, r.Spec.ClusterName+"/"+kontrol.TargetOf(r).Name)
		r.Generation++
		if r.UID == "" {
			r.UID = types.UID(r.Name)
			w.o.Resources = append(w.o.Resources, r)
			continue
		}
		i := slices.IndexFunc(w.o.Resources, func(x *kontrol.Resource) bool { return x.Name == r.Name })
		w.o.Resources[i] = r
	}
	return s.Status
}

func (w *world) heal(clusters ...string) {
	for _, r := range w.o.Resources {
		if len(clusters) == 0 || slices.Contains(clusters, r.Spec.ClusterName) {
			setState(r, kontrol.StateSynced, "")
		}
	}
}

func setState(r *kontrol.Resource, s kontrol.State, message string) {
	r.Status.ObservedGeneration, r.Status.State, r.Status.Message = r.Generation, s, message
	r.Status.Conditions = []metav1.Condition{{Type: kontrol.ConditionHealthy, Status: metav1.ConditionTrue}}
	if s == kontrol.StateDegraded {
		r.Status.Conditions = []metav1.Condition{
			{
				Type: kontrol.ConditionHealthy, Status: metav1.ConditionFalse, Reason: string(kontrol.HealthDegraded),
				Message: message,
			},
		}
	}
}

func (w *world) resource(cluster, name string) *kontrol.Resource {
	for _, r := range w.o.Resources {
		if r.Spec.ClusterName == cluster && kontrol.TargetOf(r).Name == name {
			return r
		}
	}
	return nil
}

func (w *world) finish() kontrol.BundleStatus {
	for range 100 {
		w.step()
		w.heal()
	}
	return w.step()
}

func (w *world) wrote() []string {
	out := w.writes
	w.writes = nil
	return out
}
