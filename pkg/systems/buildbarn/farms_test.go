package buildbarn_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	buildbarn "github.com/coracle-dev/coracle/apis/buildbarn/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/testing/controlplane"
)

// writes counts the writes of Buildbarn's reconcilers, except events.
type writes struct {
	mu    sync.Mutex
	count map[string]int
}

// note counts a successful write as "verb Kind/name", a write of a status with the verb status. It counts before
// other clients can see the write.
func (w *writes) note(verb string, o ctrl.Object, write func() error) error {
	kind := strings.TrimPrefix(fmt.Sprintf("%T", o), "*")
	name := verb + " " + kind[strings.LastIndex(kind, ".")+1:] + "/" + o.GetName()
	add := func(n int) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.count == nil {
			w.count = map[string]int{}
		}
		if w.count[name] += n; w.count[name] == 0 {
			delete(w.count, name)
		}
	}
	add(1)
	err := write()
	if err != nil {
		add(-1)
	}
	return err
}

// take returns the counts and resets them. Only with all it includes statuses and the deletion of configuration
// copies that no pod uses.
func (w *writes) take(all bool) map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	got := maps.Clone(w.count)
	clear(w.count)
	maps.DeleteFunc(got, func(name string, _ int) bool {
		return !all && (strings.HasPrefix(name, "status ") || strings.HasPrefix(name, "delete ConfigMap/"))
	})
	return got
}

type counted struct {
	ctrl.WithWatch
	cache ctrlcache.Cache
}

func (c counted) Cache() ctrlcache.Cache { return c.cache }

func (w *writes) through(name string, c client.Interface) client.Interface {
	if !strings.Contains(name, ":buildbarn") {
		return c
	}
	return counted{interceptor.NewClient(c, interceptor.Funcs{
		Create: func(ctx context.Context, c ctrl.WithWatch, o ctrl.Object, opts ...ctrl.CreateOption) error {
			if _, event := o.(*corev1.Event); event {
				return c.Create(ctx, o, opts...)
			}
			return w.note("create", o, func() error { return c.Create(ctx, o, opts...) })
		},
		Update: func(ctx context.Context, c ctrl.WithWatch, o ctrl.Object, opts ...ctrl.UpdateOption) error {
			return w.note("update", o, func() error { return c.Update(ctx, o, opts...) })
		},
		Delete: func(ctx context.Context, c ctrl.WithWatch, o ctrl.Object, opts ...ctrl.DeleteOption) error {
			return w.note("delete", o, func() error { return c.Delete(ctx, o, opts...) })
		},
		SubResourceUpdate: func(ctx context.Context, c ctrl.Client, sub string, o ctrl.Object,
			opts ...ctrl.SubResourceUpdateOption) error {
			return w.note("status", o, func() error { return c.SubResource(sub).Update(ctx, o, opts...) })
		},
	}), c.Cache()}
}

func reconciled(t *testing.T, metrics *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := metrics.Gather()
	require.NoError(t, err)
	count := map[string]float64{}
	for _, f := range families {
		if f.GetName() != "controller_runtime_reconcile_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "controller" && strings.HasPrefix(l.GetValue(), "buildbarn") {
					count[l.GetValue()] += m.GetCounter().GetValue()
				}
			}
		}
	}
	return count
}

// volumes creates volumes for the claims of two storage pods, since these tests have no provisioner.
func (c *cluster) volumes(class string, pods int) {
	for i := range pods * 2 {
		c.Make(&corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("volume-%d", i)}, Spec: corev1.PersistentVolumeSpec{
				Capacity:    corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: class,
				PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
				PersistentVolumeSource: corev1.PersistentVolumeSource{
					HostPath: &corev1.HostPathVolumeSource{Path: "/nowhere"},
				},
			},
		})
	}
}

// TestBuildbarnFarm creates a farm over HTTP with only the rights of its reconcilers' roles. A change of one field
// must cost one write for each object that has the field, and reconciling a farm without changes must cost none.
func TestBuildbarnFarm(t *testing.T) {
	for name, farmTLS := range map[string]*buildbarn.FarmTLS{"plain": nil, "TLS": {}} {
		t.Run(name, func(t *testing.T) {
			count, metrics := &writes{}, prometheus.NewRegistry()
			c := start(t, controlplane.Options{
				Agent:   true,
				HTTP:    true,
				Log:     slog.LevelWarn,
				Client:  count.through,
				Metrics: metrics,
			})
			c.Node("a")
			class, size := "by-hand", resource.MustParse("256Mi")
			c.volumes(class, 2)
			farm := &buildbarn.Buildbarn{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "farm"},
				Spec: buildbarn.BuildbarnSpec{
					TLS: farmTLS,
					Storage: buildbarn.FarmStorage{
						StorageClassName: &class,
						CASSize:          &size,
						ACSize:           &size,
						ClaimPolicy:      buildbarn.ClaimsDelete,
					},
				}}
			c.Make(farm)
			ready := func() {
				t.Helper()
				controlplane.Until(c, &buildbarn.BuildbarnList{}, "default", "farm", func(b *buildbarn.Buildbarn) bool {
					return b.Status.State == buildbarn.Ready && b.Status.ObservedGeneration == b.Generation
				})
			}
			ready()
			for what, n := range count.take(false) {
				if verb, _, _ := strings.Cut(what, " "); verb == "create" {
					require.Equal(t, 1, n, what)
				}
			}
			change := func(text string) {
				t.Helper()
				c.Change(&buildbarn.Buildbarn{ObjectMeta: metav1.ObjectMeta{Namespace: "default"}}, "farm", text)
				ready()
			}
			change(`{"spec":{"frontend":{"replicas":2}}}`)
			require.Equal(t, map[string]int{"update BuildbarnFrontend/farm-frontend": 1, "update Deployment/farm-frontend": 1},
				count.take(false))

			// Storage's persistence is in its configuration. Each part has a copy of only its own files.
			var storage appsv1.StatefulSet
			require.NoError(t, c.Get(c.Ctx, ctrl.ObjectKey{Namespace: "default", Name: "farm-storage"}, &storage))
			change(`{"spec":{"config":{"persistSeconds":60}}}`)
			controlplane.Until(c, &appsv1.StatefulSetList{}, "default", "farm-storage", func(s *appsv1.StatefulSet) bool {
				return s.Generation > storage.Generation && s.Status.ObservedGeneration == s.Generation &&
					s.Status.UpdatedReplicas == 2 && s.Status.ReadyReplicas == 2 && s.Status.CurrentRevision == s.Status.UpdateRevision
			})
			ready()
			var kinds []string
			for what, n := range count.take(false) {
				require.Equal(t, 1, n, what)
				kinds = append(kinds, strings.SplitAfter(what, "/")[0])
			}
			require.ElementsMatch(t, []string{"create ConfigMap/", "update ConfigMap/", "update StatefulSet/"}, kinds)

			// Once the farm has settled, a reconciliation of all parts writes nothing, not even a status.
			for round := 0; ; round++ {
				require.Less(t, round, 50, "each reconciliation writes something: %v", count.take(true))
				count.take(true)
				before := reconciled(t, metrics)
				require.Len(t, before, 6, "one for each kind")
				for _, list := range []ctrl.ObjectList{
					&buildbarn.BuildbarnList{},
					&buildbarn.BuildbarnSchedulerList{},
					&buildbarn.BuildbarnWorkerList{},
					&buildbarn.BuildbarnStorageList{},
					&buildbarn.BuildbarnFrontendList{},
				} {
					c.touch(list, round)
				}
				require.Eventually(t, func() bool {
					now := reconciled(t, metrics)
					delete(now, "buildbarnbrowser") // this farm has no browser
					for name := range now {
						if now[name] == before[name] {
							return false
						}
					}
					return true
				}, controlplane.Patience, 2*time.Millisecond)
				if len(count.take(true)) == 0 {
					break
				}
			}

			var d appsv1.Deployment
			require.NoError(t, c.Get(c.Ctx, ctrl.ObjectKey{Namespace: "default", Name: "farm-scheduler"}, &d))
			uid := d.UID
			require.NoError(t, c.Delete(c.Ctx, d.DeepCopy()))
			controlplane.Until(c, &appsv1.DeploymentList{}, "default", "farm-scheduler", func(d *appsv1.Deployment) bool {
				return d.UID != uid
			})
			c.Change(&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default"}}, "farm-frontend",
				`{"spec":{"replicas":5}}`)
			controlplane.Until(c, &appsv1.DeploymentList{}, "default", "farm-frontend", func(d *appsv1.Deployment) bool {
				return *d.Spec.Replicas == 2 && d.Generation >= 3
			})
			ready()
			require.Equal(t, map[string]int{"create Deployment/farm-scheduler": 1, "update Deployment/farm-frontend": 1},
				count.take(false))
		})
	}
}

func (c *cluster) touch(list ctrl.ObjectList, round int) {
	c.T.Helper()
	require.NoError(c.T, c.List(c.Ctx, list, ctrl.InNamespace("default")))
	require.NoError(c.T, meta.EachListItem(list, func(o runtime.Object) error {
		next := o.DeepCopyObject().(ctrl.Object)
		c.Change(next, next.GetName(), fmt.Sprintf(`{"metadata":{"annotations":{"touched":"%d"}}}`, round))
		return nil
	}))
}
