package network

import (
	"encoding/binary"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

type field int

const (
	addrSrc field = iota
	addrDst
	proto
	portDst
)

func load(f field, reg uint32) []expr.Any {
	switch f {
	case addrSrc:
		return []expr.Any{&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 4}}
	case addrDst:
		return []expr.Any{&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4}}
	case proto:
		return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg}}
	default:
		return []expr.Any{&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}}
	}
}

func inPrefix(f field, p netip.Prefix) []expr.Any {
	return append(load(f, reg1),
		&expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: 4, Mask: prefixNet(p).Mask, Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: p.Addr().AsSlice()})
}

// fromLink matches links (MetaKeyIIFNAME or MetaKeyOIFNAME) whose name has the prefix.
func fromLink(key expr.MetaKey, prefix string) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: reg1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: []byte(prefix)}}
}

func notLoopback() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: reg1},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg1, Data: []byte("lo\x00")}}
}

// isNew matches the first packet of a connection.
func isNew() []expr.Any {
	bits := binaryutil.NativeEndian.PutUint32(expr.CtStateBitNEW)
	return []expr.Any{&expr.Ct{Key: expr.CtKeySTATE, Register: reg1},
		&expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: 4, Mask: bits, Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg1, Data: make([]byte, 4)}}
}

func localDestination() []expr.Any {
	return []expr.Any{&expr.Fib{Register: reg1, ResultADDRTYPE: true, FlagDADDR: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: []byte{unix.RTN_LOCAL, 0, 0, 0}}}
}

func lookup(s *nftables.Set) []expr.Any {
	return []expr.Any{
		&expr.Lookup{SourceRegister: reg1, DestRegister: reg1, IsDestRegSet: true, SetID: s.ID, SetName: s.Name},
	}
}

// member matches keys that are in the set or, inverted, keys that are not.
func member(s *nftables.Set, invert bool) []expr.Any {
	return []expr.Any{&expr.Lookup{SourceRegister: reg1, SetID: s.ID, SetName: s.Name, Invert: invert}}
}

// linkLocal is where clouds serve a machine's credentials (169.254.169.254 and others), and some also DNS.
var linkLocal = netip.MustParsePrefix("169.254.0.0/16")

const portDNS = 53

// spoofed matches packets whose source address is not routed through the link on which they arrived. The route
// through a pod's link leads only to the pod's address.
func spoofed() []expr.Any {
	return []expr.Any{&expr.Fib{Register: reg1, ResultOIF: true, FlagSADDR: true, FlagIIF: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: []byte{0, 0, 0, 0}}}
}

// icmpAdminProhibited is a code of ICMP's destination unreachable (RFC 1812, section 5.2.7.1).
const icmpAdminProhibited = 13

func protocolIs(op expr.CmpOp, number byte) []expr.Any {
	return append(load(proto, reg1), &expr.Cmp{Op: op, Register: reg1, Data: []byte{number}})
}

func notTo(port uint16) []expr.Any {
	return append(load(portDst, reg1), &expr.Cmp{
		Op:       expr.CmpOpNeq,
		Register: reg1,
		Data:     binary.BigEndian.AppendUint16(nil, port),
	})
}
