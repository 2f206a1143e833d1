// Package tables notices when another process removes one of the node's nftables tables, as `nft flush ruleset` or the
// restart of a firewall's service does, and has it written again. Without that, services and DNS would be dead and
// network policies open until the agent restarts. It also reports other changes, such as the
// rules that Docker writes at its start.
//
// Its invariant: it sleeps while only this process changes nftables.
package tables

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/base/backoff"
	"github.com/coracle-dev/coracle/pkg/base/run"
)

// Table is a table of family ip.
type Table struct {
	Name string
	// Written reports whether the table should exist, for the report of its removal; nil means that it always should.
	Written func() bool
	// Restore writes the table again, or has it written. It is called when the table is missing, also if there is none
	// to be, and again later if it fails.
	Restore func(context.Context) error
}

// Watcher implements run.Component.
type Watcher struct {
	// Tables are restored in this order.
	Tables []Table
	Logger *slog.Logger
	// Removed, if not nil, is called when another program has removed a table.
	Removed func(table, program string)
	// Changed, if not nil, is called at the start and after transactions of other programs, and again later if it fails.
	Changed func() error
	run.Readiness
}

// Name implements run.Component.
func (w *Watcher) Name() string { return "nftables" }

// generation is the kernel's message at the end of a transaction (NFT_MSG_NEWGEN). It names the process.
const generation = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWGEN

// Run watches until ctx is done.
func (w *Watcher) Run(ctx context.Context) error {
	own, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		return err
	}
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return fmt.Errorf("listen to changes of nftables: %w", err)
	}
	defer conn.Close()
	// The changes themselves, which the kernel also sends, would fill the socket at each large sync.
	program, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: 4, Size: 2}, // nlmsg_type, little-endian
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: generation&0xff<<8 | generation>>8, SkipFalse: 1},
		bpf.RetConstant{Val: 4096},
		bpf.RetConstant{Val: 0},
	})
	if err != nil {
		return err
	}
	if err := errors.Join(conn.SetBPF(program), conn.JoinGroup(unix.NFNLGRP_NFTABLES)); err != nil {
		return fmt.Errorf("listen to changes of nftables: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })()
	w.SetReady()
	who := ""
	retry := backoff.Backoff{First: 100 * time.Millisecond, Most: 10 * time.Second}
	for {
		err := w.restore(ctx, who)
		if w.Changed != nil {
			err = errors.Join(err, w.Changed())
		}
		if err != nil {
			w.Logger.Error("could not write nftables rules again, retrying", "error", err)
			who = "" // reported already
			if !retry.Wait(ctx) {
				return nil
			}
			continue
		}
		retry.Reset()
		if who, err = next(conn, strings.TrimSpace(string(own))); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
	}
}

// next waits for a transaction of another program and returns its name.
func next(conn *netlink.Conn, own string) (who string, err error) {
	for {
		messages, err := conn.Receive()
		if errors.Is(err, unix.ENOBUFS) {
			return "", nil // any transaction
		}
		if err != nil {
			return "", err
		}
		for _, m := range messages {
			if who := program(m.Data); who != own {
				return who, nil
			}
		}
	}
}

// program returns the name of the process in a generation message, at most 15 bytes.
func program(data []byte) (name string) {
	if len(data) < 4 {
		return ""
	}
	attributes, err := netlink.NewAttributeDecoder(data[4:])
	if err != nil {
		return ""
	}
	attributes.ByteOrder = binary.BigEndian
	for attributes.Next() {
		if attributes.Type() == unix.NFTA_GEN_PROC_NAME {
			name = attributes.String()
		}
	}
	return name
}

func (w *Watcher) restore(ctx context.Context, who string) error {
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	found, err := conn.ListTablesOfFamily(nftables.TableFamilyIPv4)
	if err != nil {
		return fmt.Errorf("list nftables tables: %w", err)
	}
	there := map[string]bool{}
	for _, t := range found {
		there[t.Name] = true
	}
	var errs error
	for _, t := range w.Tables {
		if there[t.Name] {
			continue
		}
		if who != "" && (t.Written == nil || t.Written()) {
			w.Logger.Warn("another program removed an nftables table: writing it again", "table", t.Name, "program", who)
			if w.Removed != nil {
				w.Removed(t.Name, who)
			}
		}
		if err := t.Restore(ctx); err != nil {
			errs = errors.Join(errs, fmt.Errorf("table %s: %w", t.Name, err))
		}
	}
	return errs
}
