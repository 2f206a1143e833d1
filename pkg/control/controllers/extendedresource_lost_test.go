package controllers_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	toolscache "k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/control/scheduler"
	"github.com/coracle-dev/coracle/pkg/testing/controlplane"
)

// unreliable is a client whose first bindings fail. If behind is set, its cache also lags.
type unreliable struct {
	client.Interface
	fail, lose atomic.Int32 // bindings that fail, then bindings that succeed but return an error
	bindings   atomic.Int32
	// behind is closed when the cache catches up. From the first binding until then the cache hides claims and
	// changes of pods. Nil: the cache does not lag.
	behind  chan struct{}
	catchUp func()
}

func (u *unreliable) Cache() ctrlcache.Cache {
	if u.behind == nil {
		return u.Interface.Cache()
	}
	return late{u.Interface.Cache(), u}
}

func (u *unreliable) Delete(ctx context.Context, o ctrl.Object, opts ...ctrl.DeleteOption) error {
	if _, ok := o.(*resourcev1.ResourceClaim); ok && u.behind != nil && u.bindings.Load() > 0 {
		defer u.catchUp()
	}
	return u.Interface.Delete(ctx, o, opts...)
}

type late struct {
	ctrlcache.Cache
	u *unreliable
}

func (l late) List(ctx context.Context, list ctrl.ObjectList, opts ...ctrl.ListOption) error {
	if _, ok := list.(*resourcev1.ResourceClaimList); ok && l.u.bindings.Load() > 0 {
		select {
		case <-l.u.behind:
		default:
			return nil
		}
	}
	return l.Cache.List(ctx, list, opts...)
}

func (l late) GetInformer(ctx context.Context, o ctrl.Object,
	opts ...ctrlcache.InformerGetOption) (ctrlcache.Informer, error) {
	inf, err := l.Cache.GetInformer(ctx, o, opts...)
	if _, ok := o.(*corev1.Pod); ok {
		return lateInformer{inf, l.u}, err
	}
	return inf, err
}

type lateInformer struct {
	ctrlcache.Informer
	u *unreliable
}

func (l lateInformer) AddEventHandler(h toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration,
	error) {
	return l.Informer.AddEventHandler(lateHandler{h, l.u})
}

type lateHandler struct {
	toolscache.ResourceEventHandler
	u *unreliable
}

func (l lateHandler) OnUpdate(was, is any) {
	if l.u.bindings.Load() > 0 {
		<-l.u.behind
	}
	l.ResourceEventHandler.OnUpdate(was, is)
}

func (u *unreliable) Get(ctx context.Context, key ctrl.ObjectKey, o ctrl.Object, opts ...ctrl.GetOption) error {
	if _, ok := o.(*resourcev1.ResourceClaim); ok {
		return apierrors.NewNotFound(resourcev1.Resource("resourceclaims"), key.Name)
	}
	return u.Interface.Get(ctx, key, o, opts...)
}

func (u *unreliable) SubResource(name string) ctrl.SubResourceClient {
	if name == "binding" {
		return lossy{u.Interface.SubResource(name), u}
	}
	return u.Interface.SubResource(name)
}

type lossy struct {
	ctrl.SubResourceClient
	u *unreliable
}

func (l lossy) Create(ctx context.Context, o, sub ctrl.Object, opts ...ctrl.SubResourceCreateOption) error {
	if l.u.bindings.Add(1) > 1 && l.u.behind != nil {
		l.u.catchUp()
	}
	if l.u.fail.Add(-1) >= 0 {
		return errors.New("the network is down")
	}
	err := l.SubResourceClient.Create(ctx, o, sub, opts...)
	if l.u.lose.Add(-1) >= 0 {
		return errors.Join(err, errors.New("the network went down"))
	}
	return err
}

// TestExtendedClaimsOfBindingsThatFail: such a claim is deleted, so that the next attempt can have the device. It
// is kept if the binding succeeded without an answer, even if the next attempt does not see that yet.
func TestExtendedClaimsOfBindingsThatFail(t *testing.T) {
	for name, c := range map[string]struct {
		fail, lose, bindings int32
		behind               bool
	}{"fails": {2, 0, 3, false}, "is lost": {0, 1, 1, false}, "is lost, and the cache behind": {0, 1, 1, true}} {
		t.Run(name, func(t *testing.T) {
			u := &unreliable{}
			u.fail.Store(c.fail)
			u.lose.Store(c.lose)
			if c.behind {
				u.behind = make(chan struct{})
				u.catchUp = sync.OnceFunc(func() { close(u.behind) })
			}
			cl := start(t, controlplane.Options{
				Agent: true, Log: slog.LevelError + 1, HTTP: true, Scheduler: func(s *scheduler.Config) {
					u.Interface = s.Client
					s.Client = u
				},
			})
			if c.behind {
				t.Cleanup(u.catchUp)
			}
			cl.Node("n1")
			cl.Make(gpuClass(), deviceSlice("n1", resourcev1.Device{Name: "gpu-0"}), extendedPod("p", gpu, "1"))
			p := cl.boundPod("p")
			cl.Make(extendedPod("q", gpu, "1"))
			cl.waits("q", "cannot allocate all claims") // the scheduler has seen that p is bound
			require.Equal(t, c.bindings, u.bindings.Load())
			var list resourcev1.ResourceClaimList
			require.NoError(t, cl.List(cl.Ctx, &list))
			kept := 0
			for i := range list.Items {
				r := &list.Items[i]
				if r.Name != p.Status.ExtendedResourceClaimStatus.ResourceClaimName {
					cl.Gone(r) // of an attempt that has not ended yet
					continue
				}
				kept++
				require.Nil(t, r.DeletionTimestamp)
				require.Contains(t, r.Finalizers, resourcev1.Finalizer)
			}
			require.Equal(t, 1, kept)
			var now corev1.Pod
			require.NoError(t, cl.Get(cl.Ctx, ctrl.ObjectKeyFromObject(p), &now))
			require.Equal(t, p.Status.ExtendedResourceClaimStatus, now.Status.ExtendedResourceClaimStatus,
				"it starts with these devices")
		})
	}
}
