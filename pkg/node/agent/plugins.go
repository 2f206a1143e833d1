package agent

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/coracle-dev/coracle/pkg/node/devices"
	"github.com/coracle-dev/coracle/pkg/node/devices/dra"
	"github.com/coracle-dev/coracle/pkg/node/devices/podresources"
	"github.com/coracle-dev/coracle/pkg/node/plugins"
	"github.com/coracle-dev/coracle/pkg/node/volume"
	"github.com/coracle-dev/coracle/pkg/node/volume/csi"
)

// openPlugins creates the directory shared with plugins, and the managers of devices, volumes and claims.
func (a *Agent) openPlugins() error {
	if a.c.PluginDir == "" {
		return nil
	}
	dir, err := plugins.Open(a.c.PluginDir, a.c.PluginLink)
	if err != nil {
		return fmt.Errorf("directory of plugins: %w", err)
	}
	if link := a.c.PluginLink; link != "" && dir.Path() != link {
		a.log.Info("kubelet directory is in use, plugins must use the agent's own directory", "used", link, "path",
			dir.Path())
	}
	a.dir = dir
	a.share = (&plugins.Sharer{Dir: dir}).Share
	a.serves = func(p *corev1.Pod) bool {
		return slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool {
			return v.HostPath != nil && dir.HasSockets(v.HostPath.Path)
		})
	}
	if a.devices, err = devices.New(devices.Config{
		Dir:           dir,
		File:          filepath.Join(a.c.DataDir, "devices.json"),
		Changed:       a.wakeStatus,
		HealthChanged: a.devicesChanged,
		Logger:        a.log,
		Failpoints:    a.c.Failpoints,
	}); err != nil {
		return err
	}
	a.csi, err = csi.New(csi.Config{
		Client: a.c.Client, NodeName: a.c.NodeName, Node: a.registered, Dir: dir, StateDir: filepath.Join(a.c.DataDir, "csi"),
		Registered: func() { a.pods.RetryVolumes() }, UseChanged: a.wakeStatus, Logger: a.log, Failpoints: a.c.Failpoints,
		Event: func(about corev1.ObjectReference, kind, reason, message string) {
			a.c.Recorder.About(about, kind, reason, "%s", message)
		},
	})
	if err != nil {
		return err
	}
	a.claims, err = dra.New(dra.Config{
		Client:        a.c.Client,
		NodeName:      a.c.NodeName,
		Dir:           dir,
		File:          filepath.Join(a.c.DataDir, "claims.json"),
		HealthChanged: a.devicesChanged,
		Logger:        a.log,
		Failpoints:    a.c.Failpoints,
	})
	a.plugins = plugins.New(plugins.Config{
		Dir:      dir,
		Handlers: map[string]plugins.Handler{registration.CSIPlugin: a.csi, registration.DRAPlugin: a.claims},
		Logger:   a.log,
	})
	return err
}

// devicesChanged updates the status of pods whose devices changed health.
func (a *Agent) devicesChanged(pods []types.UID) { a.pods.DevicesChanged(pods) }

func (a *Agent) volumePlugins() []volume.Plugin {
	if a.csi == nil {
		return nil
	}
	return []volume.Plugin{a.csi}
}

// runPlugins runs the managers of plugins. Their failures do not stop the agent.
func (a *Agent) runPlugins(ctx context.Context, spawn func(func() error)) {
	if a.devices == nil {
		return
	}
	spawn(func() error {
		a.guard.Loop(ctx, "plugins", func(ctx context.Context) {
			select {
			case <-ctx.Done():
				return
			case <-a.known: // drivers are registered in the Node
			}
			if err := a.plugins.Run(ctx); err != nil {
				a.log.Error("CSI and DRA drivers cannot register", "error", err)
			}
		})
		return nil
	})
	spawn(func() error {
		a.guard.Loop(ctx, "CSI drivers", func(ctx context.Context) {
			if err := a.csi.Run(ctx); err != nil {
				a.log.Error("volume limits of CSI drivers are not refreshed", "error", err)
			}
		})
		return nil
	})
	spawn(func() error {
		a.guard.Loop(ctx, "DRA drivers", func(ctx context.Context) { _ = a.claims.Run(ctx) })
		return nil
	})
	spawn(func() error {
		s := podresources.New(podresources.Config{
			Dir:     a.dir,
			Pods:    a.pods,
			Devices: a.devices,
			Claims:  a.claims,
			Logger:  a.log,
		})
		a.guard.Loop(ctx, "pod resources", func(ctx context.Context) {
			if err := s.Run(ctx); err != nil {
				a.log.Error("could not serve the pod resources API", "error", err)
			}
		})
		return nil
	})
	spawn(func() error {
		a.guard.Loop(ctx, "device plugins", func(ctx context.Context) {
			if err := a.devices.Run(ctx); err != nil {
				a.log.Error("device plugins cannot register", "error", err)
			}
		})
		return nil
	})
}
