package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/coracle-dev/coracle/pkg/cli/socket"
	"github.com/coracle-dev/coracle/pkg/node/network"
)

// checkUID and peerUID are the UIDs of the sandboxes that networkHealth creates. If this process crashes, the agent
// removes them, because they have no pods.
const checkUID, peerUID = "coracle-status", "coracle-status-peer"

// podPathTime bounds the check as a whole, of which a busy machine needs seconds to set up two network namespaces.
// Each connection must be made within reachTime.
const podPathTime, reachTime = 10 * time.Second, 2 * time.Second

// networkHealth tests what every pod needs, in the network namespace of a pod: it queries cluster DNS and connects
// to the API and to another pod, whose packets the machine forwards. Only this check detects a firewall on the machine
// that drops packets of pods.
func (n *node) networkHealth(ctx context.Context) socket.Health {
	h := newHealth("network", "pods reach DNS and the API, and each other")
	select {
	case <-n.agent.Ready():
	default:
		h.Summary = "not started"
		h.add(socket.Unhealthy, "the node is not ready yet")
		return h.Health
	}
	ctx, cancel := context.WithTimeout(ctx, podPathTime)
	defer cancel()
	select {
	case n.check <- struct{}{}:
		defer func() { <-n.check }()
	case <-ctx.Done():
		h.Summary = "another check is under way"
		h.add(socket.Warning, "%v", ctx.Err())
		return h.Health
	}
	pod := network.Pod{UID: checkUID, Namespace: "kube-system", Name: "status", Hostname: "status"}
	box, err := n.network.Setup(ctx, pod)
	if err != nil {
		h.Summary = "cannot set up a pod's network"
		h.add(socket.Unhealthy, "%v", err)
		return h.Health
	}
	defer func() { _ = n.network.Teardown(context.WithoutCancel(ctx), checkUID) }()
	first := n.serviceCIDR.Addr().Next()
	var apiErr, dnsErr, podErr error
	var checks sync.WaitGroup
	checks.Go(func() { apiErr = n.asPod(ctx, "tcp", netip.AddrPortFrom(first, 443), connected) })
	checks.Go(func() { dnsErr = n.asPod(ctx, "udp", netip.AddrPortFrom(dnsAddress(first), 53), n.resolve(ctx)) })
	checks.Go(func() { podErr = n.reachPod(ctx, pod) })
	checks.Wait()
	limited, err := n.network.Limited()
	for _, ip := range limited {
		h.add(socket.Warning, "the pod at %s has --pod-max-connections open connections, and gets no others", ip)
	}
	if err != nil {
		h.add(socket.Warning, "%v", err)
	}
	if apiErr == nil && dnsErr == nil && podErr == nil {
		return h.Health
	}
	h.Summary = "a pod cannot reach the cluster"
	if podErr != nil {
		h.add(socket.Unhealthy, "from %s, another pod of this node cannot be reached: %v", box.IP, podErr)
	}
	if dnsErr != nil {
		h.add(socket.Unhealthy, "from %s, DNS does not answer: %v", box.IP, dnsErr)
	}
	if apiErr != nil {
		h.add(socket.Unhealthy, "from %s, the API cannot be reached: %v", box.IP, apiErr)
	}
	if podErr == nil && dnsErr == nil && !connects(ctx, netip.AddrPortFrom(first, 443)) {
		h.Summary = "the API cannot be reached"
		h.add(socket.Unhealthy, "this machine cannot reach it either: run `coracle status` on the servers")
		return h.Health
	}
	n.missingRules(h)
	return h.Health
}

// connects reports whether the machine itself can connect.
func connects(ctx context.Context, to netip.AddrPort) bool {
	conn, err := (&net.Dialer{Timeout: reachTime}).DialContext(ctx, "tcp", to.String())
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// missingRules names the chains of the machine's firewall that may drop packets of pods, and the rules that they lack.
func (n *node) missingRules(h *health) {
	droppers, err := network.Droppers(n.prefix)
	for _, d := range droppers {
		rules := []string{"ip saddr"}
		if d.Forwards {
			rules = append(rules, "ip daddr")
		}
		for _, r := range rules {
			h.add(socket.Unhealthy, "the chain %s lacks a rule: nft insert rule %s %s %s %s %s accept", d, d.Family, d.Table,
				d.Chain, r, n.clusterCIDR)
		}
	}
	if err != nil || len(droppers) == 0 {
		h.add(socket.Unhealthy, "does a firewall drop packets of pods? Allow input from, and forwarding from and to, %s",
			n.clusterCIDR)
	}
	h.add(socket.Unhealthy, "`coracle help ports` has the rules for firewalld, ufw and Docker")
}

func connected(net.Conn) error { return nil }

// reachPod connects to another sandbox like pod. It succeeds if the node has no address for one.
func (n *node) reachPod(ctx context.Context, pod network.Pod) error {
	pod.UID = peerUID
	peer, err := n.network.Setup(ctx, pod)
	if errors.Is(err, network.ErrNoAddress) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = n.network.Teardown(context.WithoutCancel(ctx), peerUID) }()
	var listener net.Listener
	if err := n.network.Enter(ctx, peerUID, func() (err error) {
		listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp4", netip.AddrPortFrom(peer.IP, 0).String())
		return err
	}); err != nil {
		return err
	}
	defer listener.Close()
	to := netip.AddrPortFrom(peer.IP, listener.Addr().(*net.TCPAddr).AddrPort().Port())
	return n.asPod(ctx, "tcp", to, connected) // the kernel accepts it
}

// asPod connects from the check's network namespace and passes the connection to use.
func (n *node) asPod(ctx context.Context, protocol string, to netip.AddrPort, use func(net.Conn) error) error {
	var conn net.Conn
	err := n.network.Enter(ctx, checkUID, func() (err error) {
		d := net.Dialer{Timeout: reachTime}
		conn, err = d.DialContext(ctx, protocol, to.String())
		return err
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	return use(conn)
}

// resolve returns a function that looks up the API's Service over an open connection to DNS.
func (n *node) resolve(ctx context.Context) func(net.Conn) error {
	return func(conn net.Conn) error {
		resolver := &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
			return keptOpen{conn.(*net.UDPConn)}, nil
		}}
		ctx, cancel := context.WithTimeout(ctx, reachTime)
		defer cancel()
		if _, err := resolver.LookupNetIP(ctx, "ip4", "kubernetes.default.svc."+n.domain+"."); err != nil {
			return fmt.Errorf("no answer within %s", reachTime)
		}
		return nil
	}
}

// keptOpen is a connection that ignores Close, because the resolver closes its connection after each attempt.
type keptOpen struct{ *net.UDPConn }

func (keptOpen) Close() error { return nil }
