package server

import (
	"net/netip"

	"k8s.io/apiserver/pkg/authentication/user"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/node/ingress"
)

// newIngress returns the component that serves Ingresses on this machine's node address and on 127.0.0.1.
func (l *plane) newIngress() (*ingress.Ingress, error) {
	p := l.process
	own, err := netip.ParseAddr(p.NodeIP)
	if err != nil {
		return nil, err
	}
	return ingress.New(ingress.Config{
		Client: l.client(user.APIServerUser, user.SystemPrivilegedGroup), NodeName: p.NodeName,
		Addresses: []netip.Addr{own, netip.AddrFrom4([4]byte{127, 0, 0, 1})},
		HTTPPort:  uint16(p.IngressHTTPPort), HTTPSPort: uint16(p.IngressHTTPSPort), Disabled: !p.Runs(config.Ingresses),
		Resources: l.systems.Backends(), After: p.started, Log: component(p.log, "ingress"),
	})
}

// ingressPorts returns the ports that Services cannot use on node addresses once an Ingress exists.
func (l *plane) ingressPorts() (ports []uint16) {
	if !l.process.Runs(config.Ingresses) {
		return nil
	}
	for _, p := range []int{l.process.IngressHTTPPort, l.process.IngressHTTPSPort} {
		if p != 0 {
			ports = append(ports, uint16(p))
		}
	}
	return ports
}
