package registry

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"

	"github.com/coracle-dev/coracle/pkg/base/run/runtest"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/state/cache"
	"github.com/coracle-dev/coracle/pkg/state/store"
	"github.com/coracle-dev/coracle/pkg/testing/assembled"
)

// gate is a source of changes that can be blocked, as on a paused server.
type gate struct {
	*store.Store
	mu sync.RWMutex // write-locked while the gate is closed
}

func (g *gate) Changes(ctx context.Context, prefix string, rev int64) (<-chan kind.Batch, func() error) {
	in, end := g.Store.Changes(ctx, prefix, rev)
	out := make(chan kind.Batch)
	go func() {
		defer close(out)
		for b := range in {
			g.mu.RLock()
			g.mu.RUnlock() //nolint:staticcheck // waits while the gate is closed
			select {
			case out <- b:
			case <-ctx.Done():
			}
		}
	}()
	return out, end
}

// another returns a second server's registry over the same store, with its own cache.
func (h *env) another(cfg Config) (*env, *gate) {
	h.t.Helper()
	g := &gate{Store: h.store}
	kinds := kind.NewCatalog(assembled.Kinds())
	c, err := cache.New(cache.Config{Kinds: kinds, Source: g})
	require.NoError(h.t, err)
	cfg.Kinds, cfg.Store, cfg.Cache, cfg.Admission, cfg.Logger = kinds, h.store, c, admission.NewChainHandler(), slog.New(
		slog.DiscardHandler)
	r, err := New(cfg)
	require.NoError(h.t, err)
	runtest.Start(h.t, c)
	return &env{r, h.t, h.ctx}, g
}

// small has 13 allocatable addresses and 20 ports.
var small = Config{ServiceCIDR: netip.MustParsePrefix("10.43.0.0/28"), NodePortMin: 30000, NodePortMax: 30019}

func (h *env) createService(s *corev1.Service) (*corev1.Service, error) {
	res, err := h.Create(h.ctx, v1("Service", ""), s, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	o, err := res.Value()
	if err != nil {
		return nil, err
	}
	return o.(*corev1.Service), nil
}

// reserved returns the holder of each address and port by the store's reservations, and by the Services.
func (h *env) reserved() (reserved, users map[string]holder) {
	_, err := h.sync(h.ctx)
	require.NoError(h.t, err)
	reserved, users = map[string]holder{}, map[string]holder{}
	kvs, _, _, err := h.store.Range(h.ctx, h.addresses.Prefix(""), "", 0, 0)
	require.NoError(h.t, err)
	for _, kv := range kvs {
		o, err := h.addresses.Decode(kv.Value, kv.Revision)
		require.NoError(h.t, err)
		reserved[o.GetName()] = parentOf(o)
	}
	kvs, _, _, err = h.store.Range(h.ctx, portPrefix, "", 0, 0)
	require.NoError(h.t, err)
	for _, kv := range kvs {
		reserved[kv.Key[len(portPrefix):]] = holderOf(kv)
	}
	services, _ := h.cache.List(h.services, cache.Query{})
	for _, e := range services {
		ips, ports := h.allocationsOf(e.Object.(*corev1.Service))
		take := func(what string) {
			require.NotContains(h.t, users, what, "%s is used twice", what)
			users[what] = nameOf(e)
		}
		for _, ip := range ips {
			take(ip.String())
		}
		for _, port := range ports {
			take(fmt.Sprint(port))
		}
	}
	return reserved, users
}

func TestServersShareAddresses(t *testing.T) {
	first := build(t)
	a, _ := first.another(small)
	b, _ := first.another(small)
	var wg sync.WaitGroup
	var mu sync.Mutex
	made := map[string]bool{}
	full := 0
	for i, h := range []*env{a, b} {
		for n := range 12 {
			wg.Go(func() {
				s, err := h.createService(service(fmt.Sprintf("s%d-%d", i, n), corev1.ServiceTypeNodePort))
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					if made[s.Spec.ClusterIP] || made[fmt.Sprint(s.Spec.Ports[0].NodePort)] {
						t.Errorf("%s has what another has", s.Name)
					}
					made[s.Spec.ClusterIP], made[fmt.Sprint(s.Spec.Ports[0].NodePort)] = true, true
				case apierrors.IsInternalError(err):
					full++
				default:
					t.Error(err)
				}
			})
		}
	}
	wg.Wait()
	require.Len(t, made, 2*13)
	require.Equal(t, 24-13, full)
	reserved, users := a.reserved()
	require.Equal(t, users, reserved)
}

// A server that is behind chooses an address and a port that are taken, and gets others once it has caught up.
func TestAServerThatIsBehind(t *testing.T) {
	first := build(t)
	a, _ := first.another(small)
	b, gate := first.another(small)
	gate.mu.Lock()
	for i := range 12 {
		_, err := a.createService(service(fmt.Sprintf("a%d", i), corev1.ServiceTypeClusterIP))
		require.NoError(t, err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := b.createService(service("b", corev1.ServiceTypeClusterIP))
		ended <- err
	}()
	taken := service("c", corev1.ServiceTypeClusterIP)
	taken.Spec.ClusterIP = a.get("a3").Spec.ClusterIP
	_, err := b.createService(taken)
	requireStatus(t, err, 422, "provided IP is already allocated")
	gate.mu.Unlock()
	require.NoError(t, <-ended)
	reserved, users := b.reserved()
	require.Equal(t, users, reserved)
	require.Len(t, users, 13)
}

func (h *env) get(name string) *corev1.Service {
	res, err := h.Get(h.ctx, v1("Service", name), metav1.GetOptions{})
	return answer[*corev1.Service](h.t, res, err)
}

// Services are changed and deleted on two servers concurrently. In the end reservations and Services agree.
func TestNoReservationIsLeft(t *testing.T) {
	first := build(t)
	a, _ := first.another(small)
	b, _ := first.another(small)
	var wg sync.WaitGroup
	for worker := range 4 {
		h := []*env{a, b}[worker%2]
		random := rand.New(rand.NewPCG(1, uint64(worker)))
		wg.Go(func() {
			for range 60 {
				name := fmt.Sprintf("s%d", random.IntN(6)) // all workers use the same names
				var err error
				switch random.IntN(6) {
				case 0:
					_, err = h.Delete(h.ctx, v1("Service", name), metav1.DeleteOptions{})
				case 1:
					_, err = h.Patch(h.ctx, v1("Service", name), types.MergePatchType,
						[]byte(`{"spec":{"type":"ExternalName","externalName":"x.org","clusterIP":"","clusterIPs":null}}`),
						metav1.PatchOptions{})
				case 2:
					_, err = h.Patch(h.ctx, v1("Service", name), types.MergePatchType, []byte(`{"spec":{"type":"ClusterIP"}}`),
						metav1.PatchOptions{})
				case 3:
					_, err = h.Patch(h.ctx, v1("Service", name), types.MergePatchType,
						[]byte(`{"spec":{"type":"LoadBalancer","externalTrafficPolicy":"Local"}}`), metav1.PatchOptions{})
				case 4:
					s := service(name, corev1.ServiceTypeNodePort)
					s.Finalizers = []string{"x.org/wait"}
					_, err = h.createService(s)
				case 5:
					_, err = h.Patch(h.ctx, v1("Service", name), types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`),
						metav1.PatchOptions{})
				}
				if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsAlreadyExists(err) && !apierrors.IsConflict(err) &&
					!apierrors.IsInvalid(err) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	reserved, users := a.reserved()
	require.Equal(t, users, reserved)
	require.NoError(t, a.RepairAllocations(a.ctx))
	again, _ := b.reserved()
	require.Equal(t, reserved, again)

	_, err := a.DeleteCollection(a.ctx, v1("Service", ""), metav1.DeleteOptions{}, metav1.ListOptions{})
	require.NoError(t, err)
	for name := range map[string]bool{"s0": true, "s1": true, "s2": true, "s3": true, "s4": true, "s5": true} {
		_, err := b.Patch(b.ctx, v1("Service", name), types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`),
			metav1.PatchOptions{})
		require.True(t, err == nil || apierrors.IsNotFound(err), err)
	}
	reserved, _ = b.reserved()
	require.Empty(t, reserved)
}

func TestRepairOfAllocations(t *testing.T) {
	h := build(t)
	addressKind := networkingv1.SchemeGroupVersion.WithKind("IPAddress")
	a, b := put(h, v1("Service", ""), service("a", corev1.ServiceTypeNodePort)), put(h, v1("Service", ""),
		service("b", corev1.ServiceTypeNodePort))

	res, err := h.Get(h.ctx, at(addressKind, "", a.Spec.ClusterIP), metav1.GetOptions{})
	ip := answer[*networkingv1.IPAddress](t, res, err)
	require.Equal(t, networkingv1.ParentReference{Resource: "services", Namespace: "work", Name: "a"}, *ip.Spec.ParentRef)
	require.Equal(t,
		map[string]string{
			"ipaddress.kubernetes.io/ip-family": "IPv4", "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io",
		}, ip.Labels)
	require.Equal(t, a.ResourceVersion, ip.ResourceVersion, "one transaction")
	require.NotEmpty(t, ip.UID)

	// A user deletes the IPAddress of a Service, and creates one that no Service uses.
	_, err = h.Delete(h.ctx, at(addressKind, "", a.Spec.ClusterIP), metav1.DeleteOptions{})
	require.NoError(t, err)
	own := &networkingv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Name: "10.43.7.7"},
		Spec: networkingv1.IPAddressSpec{
			ParentRef: &networkingv1.ParentReference{Group: "example.org", Resource: "gateways", Name: "g"},
		}}
	put(h, at(addressKind, "", ""), own)
	wanted := service("c", corev1.ServiceTypeClusterIP)
	wanted.Spec.ClusterIP = own.Name
	_, err = h.createService(wanted)
	requireStatus(t, err, 422, "provided IP is already allocated")
	// A node port's key and a Service are deleted directly in the store, and a reservation for a Service that does
	// not exist is added.
	require.NoError(t, h.erase(portKey(a.Spec.Ports[0].NodePort)))
	require.NoError(t, h.erase(h.services.Key("work", "b")))
	left := portOp(31999, service("gone", corev1.ServiceTypeNodePort))
	_, err = h.store.Create(h.ctx, left.Key, left.Value, 0)
	require.NoError(t, err)

	require.NoError(t, h.RepairAllocations(h.ctx))
	reserved, users := h.reserved()
	require.Equal(t, holder{}, reserved[own.Name])
	delete(reserved, own.Name)
	require.Equal(t, users, reserved)
	require.Equal(t, holder{"work", "a"}, reserved[a.Spec.ClusterIP])
	require.NotContains(t, reserved, b.Spec.ClusterIP)
}

// Deleting a wrong parent would free the address of the Service.
func TestRepairOfWhoseAddressItIs(t *testing.T) {
	h := build(t)
	addressKind := networkingv1.SchemeGroupVersion.WithKind("IPAddress")
	a := put(h, v1("Service", ""), service("a", corev1.ServiceTypeClusterIP))
	for _, parent := range []networkingv1.ParentReference{
		{Group: "example.org", Resource: "gateways", Name: "g"},
		{Resource: "services", Namespace: "work", Name: "gone"},
	} {
		_, err := h.Delete(h.ctx, at(addressKind, "", a.Spec.ClusterIP), metav1.DeleteOptions{})
		require.NoError(t, err)
		theirs := put(h, at(addressKind, "", ""), &networkingv1.IPAddress{
			ObjectMeta: metav1.ObjectMeta{Name: a.Spec.ClusterIP}, Spec: networkingv1.IPAddressSpec{ParentRef: &parent},
		})
		require.NoError(t, h.RepairAllocations(h.ctx))
		reserved, users := h.reserved()
		require.Equal(t, users, reserved)
		res, err := h.Get(h.ctx, at(addressKind, "", a.Spec.ClusterIP), metav1.GetOptions{})
		ip := answer[*networkingv1.IPAddress](t, res, err)
		require.Equal(t, theirs.UID, ip.UID)
		require.Equal(t, managedBy, ip.Labels[networkingv1.LabelManagedBy])
	}
	_, err := h.Delete(h.ctx, v1("Service", "a"), metav1.DeleteOptions{})
	require.NoError(t, err)
	reserved, _ := h.reserved()
	require.Empty(t, reserved)
}

func (h *env) erase(key string) error {
	kv, err := h.store.Get(h.ctx, key)
	if err == nil {
		_, err = h.store.Delete(h.ctx, key, kv.Revision)
	}
	return err
}

// allocationsOf must not write to a cached Service whose list of ports has spare capacity.
func TestAllocationsAreOnlyRead(t *testing.T) {
	s := service("a", corev1.ServiceTypeLoadBalancer)
	s.Spec.HealthCheckNodePort = 31000
	s.Spec.Ports = append(make([]corev1.ServicePort, 0, 2), corev1.ServicePort{NodePort: 30080})
	_, ports := (&Registry{}).allocationsOf(s)
	require.Equal(t, []int32{30080, 31000}, ports)
	require.Zero(t, s.Spec.Ports[:2][1])
}
