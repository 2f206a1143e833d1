package netpolicy

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
)

func addressKey(a netip.Addr) []byte { return a.AsSlice() }

// endpointKey encodes address, protocol and port, each padded to a register.
func endpointKey(d Destination) []byte {
	return slices.Concat(d.Address.Addr().AsSlice(), []byte{d.Protocol, 0, 0, 0},
		binary.BigEndian.AppendUint16(nil, d.Address.Port()), []byte{0, 0})
}

func source(reg uint32) []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 4}}
}

func destination(reg uint32) []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4}}
}

func protocol(reg uint32) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg}}
}

func port(reg uint32) []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}}
}

func ports(r Rule) []expr.Any {
	if r.Protocol == 0 {
		return nil
	}
	match := append(protocol(reg0), &expr.Cmp{Op: expr.CmpOpEq, Register: reg0, Data: []byte{r.Protocol}})
	if r.From == 0 && r.To == 65535 {
		return match
	}
	from, to := binary.BigEndian.AppendUint16(nil, r.From), binary.BigEndian.AppendUint16(nil, r.To)
	match = append(match, port(reg0)...)
	if r.From == r.To {
		return append(match, &expr.Cmp{Op: expr.CmpOpEq, Register: reg0, Data: from})
	}
	return append(match, &expr.Range{Op: expr.CmpOpEq, Register: reg0, FromData: from, ToData: to})
}

// established matches packets of connections that were allowed when they began, and ICMP errors about them.
func established() []expr.Any {
	bits := binaryutil.NativeEndian.PutUint32(expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED)
	return []expr.Any{&expr.Ct{Key: expr.CtKeySTATE, Register: reg0},
		&expr.Bitwise{SourceRegister: reg0, DestRegister: reg0, Len: 4, Mask: bits, Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg0, Data: make([]byte, 4)}}
}
