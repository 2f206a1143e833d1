package resourcequota

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/engine/model"
	"github.com/coracle-dev/coracle/pkg/engine/podstate"
)

type kinds []engine.Kind

func (k kinds) Stored() ([]engine.Kind, <-chan struct{}) { return k, nil }

// usage returns the stored usage as the registry counts it: pods that have not ended, services of two types, the
// larger of a claim's sizes, and objects of other kinds.
func usage(w *model.World) corev1.ResourceList {
	n := map[corev1.ResourceName]int64{
		corev1.ResourcePods:              0,
		corev1.ResourceServices:          0,
		corev1.ResourceServicesNodePorts: 0,
		corev1.ResourceRequestsStorage:   0,
		corev1.ResourceConfigMaps:        0,
	}
	for _, p := range model.Stored[*corev1.Pod](w) {
		if !podstate.Ended(p) {
			n[corev1.ResourcePods]++
		}
	}
	for _, s := range model.Stored[*corev1.Service](w) {
		n[corev1.ResourceServices]++
		if s.Spec.Type == corev1.ServiceTypeNodePort {
			n[corev1.ResourceServicesNodePorts]++
		}
	}
	for _, c := range model.Stored[*corev1.PersistentVolumeClaim](w) {
		n[corev1.ResourceRequestsStorage] += max(c.Spec.Resources.Requests.Storage().Value(),
			c.Status.AllocatedResources.Storage().Value())
	}
	n[corev1.ResourceConfigMaps] = int64(len(model.Stored[*corev1.ConfigMap](w)))
	out := corev1.ResourceList{}
	for name, count := range n {
		out[name] = *resource.NewQuantity(count, resource.DecimalSI)
	}
	return out
}

// TestModel: whatever is created, changed and deleted, whatever admission charges for writes that fail, and
// wherever the process is killed, a quota's status soon matches the usage.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var w *model.World
		v1 := corev1.SchemeGroupVersion
		all := kinds{
			{GroupVersionKind: v1.WithKind("Pod"), Namespaced: true},
			{GroupVersionKind: v1.WithKind("Service"), Namespaced: true},
			{GroupVersionKind: v1.WithKind("PersistentVolumeClaim"), Namespaced: true},
			{GroupVersionKind: v1.WithKind("ConfigMap"), Namespaced: true},
		}
		w = model.New(t, New(all, func(*corev1.ResourceQuota) (corev1.ResourceList, error) { return usage(w), nil }))
		name, size := rapid.SampledFrom([]string{"x", "y"}), rapid.Int64Range(1, 5)
		meta := func(t *rapid.T) metav1.ObjectMeta {
			return metav1.ObjectMeta{Namespace: "d", Name: name.Draw(t, "name")}
		}
		storage := func(n int64) corev1.ResourceList {
			return corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(n, resource.DecimalSI)}
		}
		hard := func(t *rapid.T) corev1.ResourceList {
			out := corev1.ResourceList{}
			for _, name := range []corev1.ResourceName{
				corev1.ResourcePods, corev1.ResourceServicesNodePorts, corev1.ResourceRequestsStorage, corev1.ResourceConfigMaps,
			} {
				if n := size.Draw(t, string(name)); n > 1 {
					out[name] = *resource.NewQuantity(n, resource.DecimalSI)
				}
			}
			return out
		}
		w.Live(map[string]func(*rapid.T){
			"quota comes": func(t *rapid.T) {
				w.Create(&corev1.ResourceQuota{ObjectMeta: meta(t), Spec: corev1.ResourceQuotaSpec{Hard: hard(t)}})
			},
			"quota changes": func(t *rapid.T) {
				to := hard(t)
				model.Update(w, name.Draw(t, "name"), func(q *corev1.ResourceQuota) { q.Spec.Hard = to })
			},
			"quota goes": func(t *rapid.T) { model.Delete[*corev1.ResourceQuota](w, name.Draw(t, "name")) },
			"admission charges": func(t *rapid.T) {
				model.Update(w, name.Draw(t, "name"), func(q *corev1.ResourceQuota) {
					for name, n := range q.Status.Used {
						n.Add(resource.MustParse("1"))
						q.Status.Used[name] = n
					}
				})
			},
			"pod comes": func(t *rapid.T) { w.Create(&corev1.Pod{ObjectMeta: meta(t)}) },
			"pod ends": func(t *rapid.T) {
				model.Update(w, name.Draw(t, "name"), func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
			},
			"pod goes": func(t *rapid.T) {
				model.Delete[*corev1.Pod](w, name.Draw(t, "name"), client.GracePeriodSeconds(0))
			},
			"service": func(t *rapid.T) { w.Create(&corev1.Service{ObjectMeta: meta(t)}) },
			"service changes": func(t *rapid.T) {
				to := rapid.SampledFrom([]corev1.ServiceType{corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort}).Draw(t,
					"type")
				model.Update(w, name.Draw(t, "name"), func(s *corev1.Service) { s.Spec.Type = to })
			},
			"claim comes": func(t *rapid.T) {
				w.Create(&corev1.PersistentVolumeClaim{
					ObjectMeta: meta(t),
					Spec: corev1.PersistentVolumeClaimSpec{
						Resources: corev1.VolumeResourceRequirements{Requests: storage(size.Draw(t, "size"))},
					},
				})
			},
			"claim asks for more or less": func(t *rapid.T) {
				n := size.Draw(t, "size")
				model.Update(w, name.Draw(t, "name"), func(c *corev1.PersistentVolumeClaim) {
					c.Spec.Resources.Requests = storage(n)
				})
			},
			"claim is expanded": func(t *rapid.T) {
				n := size.Draw(t, "size")
				model.Update(w, name.Draw(t, "name"), func(c *corev1.PersistentVolumeClaim) {
					c.Status.AllocatedResources = storage(n)
				})
			},
			"claim goes":      func(t *rapid.T) { model.Delete[*corev1.PersistentVolumeClaim](w, name.Draw(t, "name")) },
			"config map":      func(t *rapid.T) { w.Create(&corev1.ConfigMap{ObjectMeta: meta(t)}) },
			"config map goes": func(t *rapid.T) { model.Delete[*corev1.ConfigMap](w, name.Draw(t, "name")) },
		}, func() {})
		w.Settle(2 * time.Second)
		used := usage(w)
		for _, q := range model.Stored[*corev1.ResourceQuota](w) {
			want := corev1.ResourceList{}
			for name := range q.Spec.Hard {
				want[name] = used[name]
			}
			if !equality.Semantic.DeepEqual(q.Status.Hard, q.Spec.Hard) || !equality.Semantic.DeepEqual(q.Status.Used, want) {
				t.Fatalf("quota %s says %s, but it is %s", q.Name, fmt.Sprint(q.Status), fmt.Sprint(want))
			}
		}
	})
}
