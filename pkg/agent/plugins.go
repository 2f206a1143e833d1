package agent

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/coracle-dev/coracle/pkg/agent/devices"
	"github.com/coracle-dev/coracle/pkg/agent/plugins"
)

// openPlugins makes the directory that plugins share with the agent.
func (a *Agent) openPlugins() error {
	if a.c.PluginDir == "" {
		return nil
	}
	dir, err := plugins.Open(a.c.PluginDir, a.c.PluginLink)
	if err != nil {
		return fmt.Errorf("directory of plugins: %w", err)
	}
	if link := a.c.PluginLink; link != "" && dir.Path() != link {
		a.log.Info("something else uses the usual directory of plugins, they find this agent at another", "used", link, "path", dir.Path())
	}
	a.devices, err = devices.New(devices.Config{Dir: dir, File: filepath.Join(a.c.DataDir, "devices.json"), Changed: a.wakeStatus, Logger: a.log})
	return err
}

// runPlugins serves the plugins. Without them the node works.
func (a *Agent) runPlugins(ctx context.Context, spawn func(func() error)) {
	if a.devices == nil {
		return
	}
	spawn(func() error {
		a.guard.Loop(ctx, "device plugins", func(ctx context.Context) {
			if err := a.devices.Run(ctx); err != nil {
				a.log.Error("device plugins cannot register", "error", err)
			}
		})
		return nil
	})
}
