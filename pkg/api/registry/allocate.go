package registry

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	apiservice "k8s.io/kubernetes/pkg/api/service"
	"k8s.io/kubernetes/pkg/apis/core"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/state/cache"
	"github.com/coracle-dev/coracle/pkg/state/store"
)

// Each cluster IP and node port is reserved by a key of its own: an IPAddress object (KEP-1880) or a key under
// portPrefix. The keys are created and deleted in the transaction that writes the Service, on the condition that they
// do not exist yet. Servers that share a store therefore never allocate one twice, no lock is held, and a crash leaves
// nothing behind. RepairAllocations corrects what users do to IPAddress objects.
//
// Upstream keeps node ports in one bitmap, /registry/ranges/servicenodeports, which every write of a Service with node
// ports replaces. With one key per port, such writes can run concurrently. An upstream server rebuilds its bitmap from
// the Services when it starts.

// managedBy is the label value with which upstream marks the IPAddresses created by its allocator.
const managedBy = "ipallocator.k8s.io"

// errReserved means that another write reserved the address or port after it was found to be free.
var errReserved = fmt.Errorf("another write allocated the address or port first: %w", store.ErrConflict)

// allocate assigns the addresses and ports that now needs and was lacks. commitOp reserves them in the transaction
// that writes the Service.
func (c *call) allocate(now, was *core.Service) error {
	if err := c.allocateIP(now, was); err != nil {
		return err
	}
	ports := ports{call: c, taken: map[int32]bool{}}
	if err := ports.nodePorts(now, was); err != nil {
		return err
	}
	if apiservice.NeedsHealthCheck(now) && (was == nil || !apiservice.NeedsHealthCheck(was)) {
		port := now.Spec.HealthCheckNodePort
		if err := ports.take(&port); err != nil {
			return internal(fmt.Errorf("failed to allocate requested HealthCheck NodePort %v: %w", now.Spec.HealthCheckNodePort,
				err))
		}
		now.Spec.HealthCheckNodePort = port
	}
	return nil
}

// internal turns an error without a status into an InternalError.
func internal(err error) error {
	var known apierrors.APIStatus
	if errors.As(err, &known) {
		return err
	}
	return apierrors.NewInternalError(err)
}

// allocateIP assigns the requested cluster IP, or any free one. A Service keeps its address while its type uses one.
func (c *call) allocateIP(now, was *core.Service) error {
	c.conditions = nil
	if !hasClusterIP(now) || headless(now) || was != nil && hasClusterIP(was) {
		return nil
	}
	if len(now.Spec.ClusterIPs) == 0 {
		now.Spec.ClusterIPs = []string{""}
	}
	if asked := now.Spec.ClusterIPs[0]; asked != "" {
		ip, err := netip.ParseAddr(asked)
		if err == nil {
			var of serviceRange
			of, err = c.mayHave(ip)
			c.conditions = of.stays()
		}
		if err == nil && c.addresses != nil {
			if _, err = c.store.Get(c.ctx, c.addresses.Key("", ip.String())); err == nil {
				err = errors.New("provided IP is already allocated")
			} else if errors.Is(err, store.ErrNotFound) {
				err = nil
			} else {
				return status(err, corev1.Resource("services"), now.Name)
			}
		}
		if err != nil {
			return invalidService(now,
				field.Invalid(field.NewPath("spec", "clusterIPs"), now.Spec.ClusterIPs,
					fmt.Sprintf("failed to allocate IP %v: %v", asked, err)))
		}
		now.Spec.ClusterIP = asked
		return nil
	}
	ip, of, ok := c.freeIP()
	if !ok {
		return apierrors.NewInternalError(fmt.Errorf("failed to allocate a serviceIP for Service %q: range is full",
			now.Name))
	}
	c.conditions = of.stays()
	now.Spec.ClusterIPs[0] = ip.String()
	now.Spec.ClusterIP = now.Spec.ClusterIPs[0]
	return nil
}

func (r *Registry) allocationsOf(s *corev1.Service) (ips []netip.Addr, ports []int32) {
	if s == nil {
		return nil, nil
	}
	if s.Spec.Type != corev1.ServiceTypeExternalName {
		for _, text := range s.Spec.ClusterIPs {
			if ip, err := netip.ParseAddr(text); err == nil && ip.Is4() {
				ips = append(ips, ip)
			}
		}
	}
	seen := map[int32]bool{0: true}
	use := func(port int32) {
		if !seen[port] {
			seen[port] = true
			ports = append(ports, port)
		}
	}
	for i := range s.Spec.Ports {
		use(s.Spec.Ports[i].NodePort)
	}
	use(s.Spec.HealthCheckNodePort)
	return ips, ports
}

// reservations returns the store operations for the transaction that replaces was with now. Either may be nil.
func (r *Registry) reservations(ctx context.Context, now, was *corev1.Service) ([]store.Op, error) {
	hadIPs, hadPorts := r.allocationsOf(was)
	ips, ports := r.allocationsOf(now)
	var ops []store.Op
	for _, ip := range without(ips, hadIPs) {
		op, err := r.addressOp(ip, now, nil)
		if err != nil {
			return nil, err
		}
		ops = append(ops, op...)
	}
	for _, port := range without(ports, hadPorts) {
		ops = append(ops, portOp(port, now))
	}
	for _, ip := range without(hadIPs, ips) {
		if r.addresses == nil {
			break
		}
		kv, err := r.store.Get(ctx, r.addresses.Key("", ip.String()))
		if err == nil && r.parentIs(kv, was) {
			ops = append(ops, store.Op{Action: store.Remove, Key: kv.Key, Revision: kv.Revision})
		} else if err != nil && !errors.Is(err, store.ErrNotFound) {
			return nil, err
		}
	}
	for _, port := range without(hadPorts, ports) {
		kv, err := r.store.Get(ctx, portKey(port))
		if err == nil && holderOf(kv) == (holder{was.Namespace, was.Name}) {
			ops = append(ops, store.Op{Action: store.Remove, Key: kv.Key, Revision: kv.Revision})
		} else if err != nil && !errors.Is(err, store.ErrNotFound) {
			return nil, err
		}
	}
	return ops, nil
}

func without[T comparable](a, b []T) (rest []T) {
	has := sets.New(b...)
	for _, x := range a {
		if !has.Has(x) {
			rest = append(rest, x)
		}
	}
	return rest
}

// addressOp returns the operation that creates the IPAddress of a Service, or assigns an existing one to the Service.
func (r *Registry) addressOp(ip netip.Addr, s *corev1.Service, there *cache.Entry) ([]store.Op, error) {
	if r.addresses == nil {
		return nil, nil
	}
	a := &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{Name: ip.String(), Labels: map[string]string{
			networkingv1.LabelIPAddressFamily: string(corev1.IPv4Protocol), networkingv1.LabelManagedBy: managedBy}},
		Spec: networkingv1.IPAddressSpec{
			ParentRef: &networkingv1.ParentReference{Resource: "services", Namespace: s.Namespace, Name: s.Name},
		},
	}
	op := store.Op{Key: r.addresses.Key("", a.Name)}
	if there == nil {
		rest.FillObjectMetaSystemFields(a)
		a.SetCreationTimestamp(seconds(a.GetCreationTimestamp()))
	} else {
		a.UID, a.CreationTimestamp, op.Revision = there.Object.GetUID(), there.Object.GetCreationTimestamp(), there.Revision
	}
	a.GetObjectKind().SetGroupVersionKind(r.addresses.GroupVersionKind)
	value, err := r.addresses.Encode(a)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	op.Value = value
	return []store.Op{op}, nil
}

func (r *Registry) parentIs(kv store.KV, s *corev1.Service) bool {
	o, err := r.addresses.Decode(kv.Value, kv.Revision)
	return err == nil && parentOf(o) == holder{s.Namespace, s.Name}
}

// parentOf returns the Service that is the parent of an IPAddress; zero if the parent is of another kind.
func parentOf(o client.Object) holder {
	a, ok := o.(*networkingv1.IPAddress)
	if !ok || a.Spec.ParentRef == nil || a.Spec.ParentRef.Group != "" || a.Spec.ParentRef.Resource != "services" {
		return holder{}
	}
	return holder{a.Spec.ParentRef.Namespace, a.Spec.ParentRef.Name}
}

// commitOp makes one write. For a Service, the addresses and ports that it reserves and releases are part of the same
// transaction. now and was are nil for a deletion and a creation.
func (c *call) commitOp(op store.Op, now, was client.Object) (int64, error) {
	ops := []store.Op{op}
	if c.services != nil && c.row == c.services {
		n, _ := now.(*corev1.Service)
		w, _ := was.(*corev1.Service)
		more, err := c.reservations(c.ctx, n, w)
		if err != nil {
			return 0, err
		}
		if len(more) > 0 {
			ops = slices.Concat(ops, more, c.conditions)
		}
	}
	rev, index, err := c.store.Txn(c.ctx, ops...)
	if err != nil && index > 0 {
		return 0, errReserved
	}
	return rev, err
}
