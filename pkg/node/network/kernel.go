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

// Need is a module of the kernel without which pods have no network.
type Need struct {
	Module string // as modprobe names it
	For    string // what needs it, in a few words
	Err    error  // what the kernel answered
}

// Missing tries each module that the network of pods, services and network policies needs, and returns the ones that
// the kernel does not have. A kernel loads modules on demand, so trying is the only way to know. It happens in a
// network namespace that ends with the call, so nothing of the machine is changed.
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

// parts are the parts of nftables that rules of this package, pkg/node/proxy and pkg/node/netpolicy use, each in a
// module.
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

// missingHere tries all in the network namespace of this thread: at once, and one after the other only if that fails,
// since each transaction takes 10 ms.
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

// tryPart adds a table with one rule that uses a part.
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
