package network

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/node/host/thread"
)

// Need is a missing kernel module without which pod networking does not work.
type Need struct {
	Module string // as modprobe names it
	For    string // what needs it, such as "services"
	Err    error  // the kernel's error
}

// Missing returns the modules that the networking of pods, services and network policies needs and that the kernel
// lacks. It tries each one, because kernels load modules on demand. It works in a temporary network namespace, so it
// changes nothing on the machine.
func Missing() (missing []Need, err error) {
	err = thread.Run(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return os.NewSyscallError("unshare", err)
		}
		missing, err = missingHere()
		return err
	})
	return missing, err
}

// parts are the features of nftables that this package, pkg/node/proxy and pkg/node/netpolicy use, one per module.
var parts = []struct {
	module, use string
	chain       nftables.ChainType
	exprs       []expr.Any
}{
	{"nft_ct", "network policies", nftables.ChainTypeFilter, []expr.Any{&expr.Ct{Key: expr.CtKeySTATE, Register: reg1}}},
	{
		"nft_reject_ipv4",
		"services without endpoints",
		nftables.ChainTypeFilter,
		[]expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}},
	},
	{
		"nft_numgen",
		"services",
		nftables.ChainTypeFilter,
		[]expr.Any{&expr.Numgen{Register: reg1, Modulus: 2, Type: unix.NFT_NG_RANDOM}},
	},
	{
		"nft_fib_ipv4",
		"host and node ports",
		nftables.ChainTypeFilter,
		[]expr.Any{&expr.Fib{Register: reg1, FlagDADDR: true, ResultADDRTYPE: true}},
	},
	{
		"nft_connlimit",
		"the limit of a pod's connections",
		nftables.ChainTypeFilter,
		[]expr.Any{&expr.Connlimit{Count: 1}},
	},
	{"nft_chain_nat", "services", nftables.ChainTypeNAT, nil},
	{
		"nft_masq",
		"connections of pods to other networks",
		nftables.ChainTypeNAT,
		[]expr.Any{&expr.Masq{FullyRandom: true}},
	},
	{"nft_nat", "services", nftables.ChainTypeNAT, []expr.Any{&expr.Immediate{Register: reg1, Data: gateway.AsSlice()},
		&expr.NAT{Type: expr.NATTypeSourceNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: reg1}}},
}

// missingHere tries all features in one transaction and, if it fails, each in its own: a transaction takes 10 ms.
func missingHere() (missing []Need, err error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	lacks := func(module, use string, err error) {
		missing = append(missing, Need{Module: module, For: use, Err: err})
	}
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "try"}, PeerName: "tried"}); err != nil {
		lacks("veth", "pods", err)
	}
	for i := range parts {
		tryPart(conn, i)
	}
	err = conn.Flush()
	if err == nil || errors.Is(err, unix.EPERM) {
		return missing, err
	}
	table(conn, "try")
	if err := conn.Flush(); err != nil {
		lacks("nf_tables", "services and network policies", err)
		return missing, nil
	}
	for i := range parts {
		tryPart(conn, i)
		if err := conn.Flush(); err != nil {
			lacks(parts[i].module, parts[i].use, err)
		}
	}
	return missing, nil
}

func table(c *nftables.Conn, name string) *nftables.Table {
	return c.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: name})
}

func tryPart(c *nftables.Conn, i int) {
	p := parts[i]
	t := table(c, "try"+strconv.Itoa(i))
	hook := nftables.ChainHookPostrouting
	if p.chain == nftables.ChainTypeFilter {
		hook = nftables.ChainHookPrerouting
	}
	chain := c.AddChain(&nftables.Chain{
		Table:    t,
		Name:     "try",
		Type:     p.chain,
		Hooknum:  hook,
		Priority: nftables.ChainPriorityNATSource,
	})
	if len(p.exprs) > 0 {
		c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: p.exprs})
	}
}
