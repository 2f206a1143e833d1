package network

import (
	"context"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Traffic is what an interface has received and sent since it was created.
type Traffic struct {
	Interface      string
	Received, Sent Count
}

// Count counts one direction of an interface's traffic.
type Count struct{ Bytes, Packets, Errors, Dropped uint64 }

// Traffic implements Network. It asks the kernel once for all links, and reads a pod's traffic at the node's end of its
// link, where received and sent are reversed.
func (n *Net) Traffic(context.Context) (pods map[string]Traffic, node []Traffic, err error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, nil, err
	}
	defer h.Close()
	links, err := dump(h.LinkList)
	if err != nil {
		return nil, nil, fmt.Errorf("list links: %w", err)
	}
	n.mu.Lock()
	uids := make(map[string]string, len(n.pods))
	for uid, r := range n.pods {
		if !r.HostNet {
			uids[n.linkName(uid)] = uid
		}
	}
	n.mu.Unlock()
	up, _ := uplink(h, n.NodeIP)
	pods = map[string]Traffic{}
	for _, l := range links {
		a := l.Attrs()
		s := a.Statistics
		if s == nil {
			continue
		}
		in := Count{s.RxBytes, s.RxPackets, s.RxErrors, s.RxDropped}
		out := Count{s.TxBytes, s.TxPackets, s.TxErrors, s.TxDropped}
		uid, ofPod := uids[a.Name]
		switch {
		case ofPod:
			pods[uid] = Traffic{podLink, out, in}
		case up != nil && a.Index == up.Attrs().Index:
			node = append([]Traffic{{a.Name, in, out}}, node...)
		case a.Name != "lo" && l.Type() != "veth":
			node = append(node, Traffic{a.Name, in, out})
		}
	}
	return pods, node, nil
}
