package admission

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/auth/nodeidentifier"

	"github.com/coracle-dev/coracle/pkg/base/pki"
	"github.com/coracle-dev/coracle/pkg/engine/nodestate"
)

// nodeAddressesName is the plugin's name for --disable-admission-plugins.
const nodeAddressesName = "NodeAddresses"

// nodeAddresses refuses addresses in a status that a node writes, if the node may not have them: routes, load
// balancers and endpoints follow these addresses, so that a node with the address of another machine would get that
// machine's traffic (as CVE-2020-8554, which NodeRestriction does not prevent).
//
// A new address of the Node must be one with which the machine joined or from which it connects (pki.AddressesExtra).
// Addresses that the Node already has stay, so that an administrator or a cloud's controller can add some. A new
// address of a pod must be in the node's podCIDRs or, in the host's network, be the node's.
type nodeAddresses struct {
	*admission.Handler
	nodeidentifier.NodeIdentifier
	nodes corelisters.NodeLister
}

var _ admission.ValidationInterface = (*nodeAddresses)(nil)

func registerNodeAddresses(all *admission.Plugins) {
	all.Register(nodeAddressesName, func(io.Reader) (admission.Interface, error) {
		return &nodeAddresses{
			Handler:        admission.NewHandler(admission.Create, admission.Update),
			NodeIdentifier: nodeidentifier.NewDefaultNodeIdentifier(),
		}, nil
	})
}

func (n *nodeAddresses) SetExternalKubeInformerFactory(f informers.SharedInformerFactory) {
	i := f.Core().V1().Nodes()
	n.nodes = i.Lister()
	n.SetReadyFunc(i.Informer().HasSynced)
}

func (n *nodeAddresses) ValidateInitialization() error {
	if n.nodes == nil {
		return errors.New("missing lister")
	}
	return nil
}

func (n *nodeAddresses) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	name, isNode := n.NodeIdentity(a.GetUserInfo())
	if !isNode {
		return nil
	}
	if (a.GetResource().GroupResource() == core.Resource("nodes") || a.GetSubresource() == "status") && !n.WaitForReady() {
		return admission.NewForbidden(a, errors.New("not yet ready to handle request"))
	}
	var proven []netip.Addr
	for _, text := range a.GetUserInfo().GetExtra()[pki.AddressesExtra] {
		if ip, err := netip.ParseAddr(text); err == nil {
			proven = append(proven, ip.Unmap())
		}
	}
	var err error
	switch o := a.GetObject().(type) {
	case *core.Node:
		old, _ := a.GetOldObject().(*core.Node)
		err = n.checkNode(o, old, proven)
	case *core.Pod:
		if old, ok := a.GetOldObject().(*core.Pod); ok && a.GetSubresource() == "status" {
			err = n.checkPod(name, o, old, proven)
		}
	}
	if err != nil {
		return admission.NewForbidden(a, err)
	}
	return nil
}

func (n *nodeAddresses) checkNode(node, old *core.Node, proven []netip.Addr) error {
	for _, a := range node.Status.Addresses {
		if old != nil && slices.Contains(old.Status.Addresses, a) {
			continue
		}
		ip, err := netip.ParseAddr(a.Address)
		if err != nil {
			if a.Type == core.NodeInternalIP || a.Type == core.NodeExternalIP {
				return fmt.Errorf("%s %q of node %s is not an IP address", a.Type, a.Address, node.Name)
			}
			continue // a name
		}
		ip = ip.Unmap()
		if !slices.Contains(proven, ip) || !ip.IsGlobalUnicast() {
			return fmt.Errorf("%s %s of node %s: the machine neither joined with this address nor connects from it: join again "+
				"with a token, or let an administrator add the address to the Node's status", a.Type, ip, node.Name)
		}
		if err := n.taken(ip, node.Name); err != nil {
			return err
		}
	}
	return nil
}

// taken returns an error for the address of a pod or of another node. A node that is not ready does not count, since
// its Node may be a remnant whose address now belongs to another machine.
func (n *nodeAddresses) taken(ip netip.Addr, name string) error {
	all, err := n.nodes.List(labels.Everything())
	if err != nil {
		return err
	}
	for _, other := range all {
		if inRanges(ip, other.Spec.PodCIDRs) {
			return fmt.Errorf("%s is no address of node %s: it is in the pod range of node %s", ip, name, other.Name)
		}
		if other.Name != name && nodestate.Ready(other) && hasAddress(other, ip) {
			return fmt.Errorf("%s is the address of node %s: if %s has replaced it, delete the other Node", ip, other.Name, name)
		}
	}
	return nil
}

func (n *nodeAddresses) checkPod(name string, pod, old *core.Pod, proven []netip.Addr) error {
	for _, a := range append([]core.PodIP{{IP: pod.Status.PodIP}}, pod.Status.PodIPs...) {
		if a.IP == "" || a.IP == old.Status.PodIP || slices.Contains(old.Status.PodIPs, a) {
			continue
		}
		ip, err := netip.ParseAddr(a.IP)
		if err != nil {
			continue // validation refuses it
		}
		ip = ip.Unmap()
		node, err := n.nodes.Get(name)
		if err != nil {
			return err
		}
		switch hostNetwork := pod.Spec.HostNetwork; {
		case hostNetwork && !slices.Contains(proven, ip) && !hasAddress(node, ip):
			return fmt.Errorf("podIP %s of a pod in the host's network is no address of node %s", ip, name)
		case !hostNetwork && !inRanges(ip, node.Spec.PodCIDRs):
			return fmt.Errorf("podIP %s is in none of the podCIDRs of node %s", ip, name)
		}
	}
	return nil
}

func hasAddress(n *corev1.Node, ip netip.Addr) bool {
	return slices.ContainsFunc(n.Status.Addresses, func(a corev1.NodeAddress) bool {
		got, err := netip.ParseAddr(a.Address)
		return err == nil && got.Unmap() == ip
	})
}

func inRanges(ip netip.Addr, ranges []string) bool {
	return slices.ContainsFunc(ranges, func(r string) bool {
		p, err := netip.ParsePrefix(r)
		return err == nil && p.Contains(ip)
	})
}
