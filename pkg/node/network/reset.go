package network

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Reset releases everything acquired with this RunDir and Prefix, including what a killed process left: namespaces,
// links, routes, the nftables table, the rules in Docker's chain, records. It restores sysctls unless another
// installation in the same network namespace needs them. It may be repeated.
func Reset(ctx context.Context, c Config) error {
	if err := c.fill(); err != nil {
		return err
	}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer h.Close()
	errs := []error{c.resetLinks(ctx, h)}
	found, err := c.ours(h)
	errs = append(errs, err)
	for _, r := range found {
		if err := h.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("remove route %s: %w", r.Dst, err))
		}
	}
	shared, err := c.shared(h)
	errs = append(errs, err, c.resetTable(), AcceptInDocker(c.Prefix, netip.Prefix{}), c.resetSysctls(shared))
	for _, path := range []string{filepath.Join(c.RunDir, "ns"), c.RunDir} {
		// RunDir may be shared; it is removed only if it is empty.
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) &&
			path != c.RunDir {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Reset calls the function Reset with the Net's configuration. The Net cannot be used afterwards.
func (n *Net) Reset(ctx context.Context) error {
	return errors.Join(n.Close(), Reset(ctx, n.Config))
}

// freeing is how long to wait for the kernel to remove links after their namespaces were closed.
const freeing = 2 * time.Second

// resetLinks unmounts all namespaces, waits until the kernel has removed their links, and deletes links still in use.
func (c *Config) resetLinks(ctx context.Context, h *netlink.Handle) error {
	updates, done := make(chan netlink.LinkUpdate, 256), make(chan struct{})
	defer func() {
		close(done)
		for range updates { // drain until the subscription has ended
		}
	}()
	if err := netlink.LinkSubscribeWithOptions(updates, done, netlink.LinkSubscribeOptions{}); err != nil {
		close(updates)
		return err
	}
	pods, err := c.records()
	if err != nil {
		return err
	}
	var errs error
	for _, uid := range slices.Sorted(maps.Keys(pods)) {
		errs = errors.Join(errs, c.release(uid))
	}
	timeout := time.NewTimer(freeing)
	defer timeout.Stop()
	for {
		left, err := c.links(h)
		if err != nil || len(left) == 0 {
			return errors.Join(errs, err)
		}
		select {
		case <-updates:
			continue
		case <-timeout.C:
		case <-ctx.Done():
		}
		for _, l := range left {
			var gone netlink.LinkNotFoundError
			if err := h.LinkDel(l); err != nil && !errors.As(err, &gone) && !errors.Is(err, unix.ENODEV) {
				errs = errors.Join(errs, fmt.Errorf("remove link %s: %w", l.Attrs().Name, err))
			}
		}
		return errs
	}
}

func (c *Config) links(h *netlink.Handle) ([]netlink.Link, error) {
	all, err := dump(h.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	var links []netlink.Link
	for _, l := range all {
		if name := l.Attrs().Name; l.Type() == "veth" && len(name) == maxName && strings.HasPrefix(name, c.linkPrefix()) {
			links = append(links, l)
		}
	}
	return links, nil
}

func (c *Config) resetTable() error {
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	conn.DelTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: tableName(c.Prefix)})
	if err := conn.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove nftables table %s: %w", tableName(c.Prefix), err)
	}
	return nil
}

// resetSysctls restores sysctls or, with keep, only removes the record of their previous values.
func (c *Config) resetSysctls(keep bool) error {
	kept, err := c.savedSysctls()
	if err != nil {
		return err
	}
	if keep {
		clear(kept)
	}
	docker, err := besideDocker()
	if err != nil {
		return err
	}
	if docker { // it relies on what it found at its start
		delete(kept, forwarding)
	}
	for _, name := range slices.Sorted(maps.Keys(kept)) {
		if err := os.WriteFile("/proc/sys/"+name, []byte(kept[name]), 0); err != nil {
			return fmt.Errorf("restore sysctl %s: %w", name, err)
		}
	}
	if err := os.Remove(c.sysctlFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
