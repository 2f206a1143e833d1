package server

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"time"

	"github.com/coracle-dev/coracle/pkg/node/host/mount"
	"github.com/coracle-dev/coracle/pkg/node/network"
)

const modprobeTimeout = 10 * time.Second

// modules returns an error with a line for each kernel module that a node needs and that cannot be loaded.
func modules() error {
	return checkModules(missingModules, func(module string) error {
		ctx, cancel := context.WithTimeout(context.Background(), modprobeTimeout)
		defer cancel()
		return exec.CommandContext(ctx, "modprobe", module).Run()
	})
}

// missingModules tries the kernel features that a node needs. Trying also loads modules, where the kernel loads
// them on demand.
func missingModules() ([]network.Need, error) {
	missing, err := network.Missing()
	if err := mount.TryOverlay(); err != nil {
		missing = append(missing, network.Need{Module: "overlay", For: "the file systems of containers", Err: err})
	}
	return missing, err
}

// checkModules loads missing modules and returns an error that names those still missing.
func checkModules(try func() ([]network.Need, error), load func(module string) error) error {
	missing, err := try()
	if err != nil || len(missing) == 0 {
		return err
	}
	loaded := false
	for _, n := range missing {
		loaded = load(n.Module) == nil || loaded
	}
	if loaded {
		if missing, err = try(); err != nil {
			return err
		}
	}
	var errs []error
	for _, n := range missing {
		errs = append(errs,
			fmt.Errorf("the kernel lacks %s, which %s need (%w): load it with `modprobe %s`, or install a kernel that has "+
				"this module", n.Module, n.For, n.Err, n.Module))
	}
	return errors.Join(errs...)
}
