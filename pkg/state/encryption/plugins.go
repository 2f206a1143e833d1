package encryption

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/state/encryption/kms"
)

const (
	// startWait is how long a start waits for KMS plugins, which may be starting too. startPause is the time between two
	// questions.
	startWait  = 30 * time.Second
	startPause = time.Second
)

// Plugins is the component that connects to the configuration's KMS plugins. It is ready when each has a key for
// writes. It starts before whatever reads stored values, and ends after it.
type Plugins struct {
	keeper *Keeper
	run.Readiness
	wait time.Duration
}

var _ run.Component = (*Plugins)(nil)

// Plugins returns the component of the Keeper's plugins.
func (k *Keeper) Plugins() *Plugins {
	return &Plugins{keeper: k, wait: startWait}
}

// Name implements run.Component.
func (p *Plugins) Name() string { return "kms" }

// Run waits for the plugins and keeps their keys current until ctx is done. It fails if one does not answer in time.
func (p *Plugins) Run(ctx context.Context) error {
	defer func() { p.keeper.settings().close() }() // the plugins of the last configuration
	s := p.keeper.settings()
	began := time.Now()
	for _, one := range s.plugins {
		if err := await(ctx, one, began.Add(p.wait)); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("%w: what it encrypts could not be read. Start the plugin first, outside of this cluster (as a "+
				"unit of systemd, not as a pod), or correct its "+
				"endpoint in %s", err, p.keeper.cfg.File)
		}
	}
	s.start(p.keeper.cfg.Logger, p.keeper.reread)
	p.SetReady()
	<-ctx.Done()
	return nil
}

// await asks a plugin until there is a key for writes.
func await(ctx context.Context, one *kms.Provider, until time.Time) error {
	for {
		err := one.Check(ctx)
		switch {
		case !one.WritableUntil().IsZero():
			return nil
		case ctx.Err() != nil || time.Now().After(until):
			return err
		}
		select {
		case <-time.After(startPause):
		case <-ctx.Done():
		}
	}
}

// settings are those in use, which may have no rules.
func (k *Keeper) settings() *settings {
	if p := k.cfg.Values.current.Load(); p != nil {
		return p.settings
	}
	return &settings{}
}

// check asks all plugins once, and returns the first error.
func (s *settings) check(ctx context.Context) error {
	for _, p := range s.plugins {
		if err := p.Check(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (s *settings) start(log *slog.Logger, recovered func()) {
	for _, p := range s.plugins {
		p.Start(log, recovered)
	}
}

// close ends the plugins' connections. Their values can no longer be read with these settings.
func (s *settings) close() {
	for _, p := range s.plugins {
		p.Close()
	}
}

// PluginsHealth returns an error if a KMS plugin is not healthy.
func (k *Keeper) PluginsHealth(context.Context) error {
	var errs []error
	for _, p := range k.settings().plugins {
		errs = append(errs, p.Health())
	}
	return errors.Join(errs...)
}

// pluginWarnings are texts for people about plugins that are not healthy.
func (k *Keeper) pluginWarnings() (all []string) {
	for _, p := range k.settings().plugins {
		if err := p.Health(); err != nil {
			all = append(all,
				fmt.Sprintf("%v. What is in memory can be read, and what this start has encrypted; writes of what it encrypts "+
					"fail from %s on, and so does a restart", err, p.WritableUntil().Format(time.RFC3339)))
		}
	}
	return all
}

// reread has the objects read again that could not be while a plugin did not answer, as soon as the component runs.
func (k *Keeper) reread() {
	select {
	case k.again <- struct{}{}:
	default: // it is about to be done
	}
}

// rereads does what reread asks for, until ctx is done.
func (k *Keeper) rereads(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.again:
		}
		if n, err := k.readAgain(ctx); err != nil && ctx.Err() == nil {
			k.cfg.Logger.Warn("could not read all objects again after their KMS plugin has come back", "objects", n, "error",
				err)
		}
	}
}

// readAgain writes the objects as they are: caches follow writes. It returns how many it could not, and why the first
// one. Those whose plugin is away again fail without asking it.
func (k *Keeper) readAgain(ctx context.Context) (failed int, first error) {
	for _, u := range k.cfg.Unreadable() {
		if !errors.Is(u.Err, kms.ErrUnavailable) {
			continue
		}
		kvs, _, _, err := k.cfg.Store.Stored(ctx, u.Key, u.Key, 1, 0)
		if err == nil && len(kvs) == 1 && kvs[0].Key == u.Key && kvs[0].Revision == u.Revision {
			err = k.cfg.Store.Reseal(ctx, kvs[0])
		}
		if ctx.Err() != nil {
			return failed, ctx.Err()
		}
		if err != nil && !k.cfg.Store.Superseded(err) {
			failed++
			first = cmp.Or(first, fmt.Errorf("%s: %w", u.Key, err))
		}
	}
	return failed, first
}

// begin returns the component's context, and a function to call at the end of what uses it; nil while it does not run.
func (k *Keeper) begin() (ctx context.Context, done func()) {
	k.lifeMu.Lock()
	defer k.lifeMu.Unlock()
	if k.life == nil {
		return nil, nil
	}
	k.ops.Add(1)
	return k.life, k.ops.Done
}
