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
	// startWait is how long a start waits for KMS plugins, which may be starting too; startPause is the time between
	// checks.
	startWait  = 30 * time.Second
	startPause = time.Second
)

// Plugins is the component that connects to the configuration's KMS plugins. It is ready when each has a key for
// writes. It starts before every component that reads stored values, and ends after them.
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
			return fmt.Errorf("%w: objects that it encrypted cannot be read. Start the plugin first, outside this cluster (as "+
				"a unit of systemd, not as a pod), or correct its "+
				"endpoint in %s", err, p.keeper.cfg.File)
		}
	}
	s.start(p.keeper.cfg.Logger, p.keeper.reread)
	p.SetReady()
	<-ctx.Done()
	return nil
}

// await checks a plugin until it has a key for writes.
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

// settings returns the settings in use; without encryption they are empty.
func (k *Keeper) settings() *settings {
	if p := k.cfg.Values.current.Load(); p != nil {
		return p.settings
	}
	return &settings{}
}

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

// close closes the plugins' connections. These settings can then no longer read the plugins' values.
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

func (k *Keeper) pluginWarnings() (all []string) {
	for _, p := range k.settings().plugins {
		if err := p.Health(); err != nil {
			all = append(all,
				fmt.Sprintf("%v. Objects in memory can still be read; from %s on, writes of the kinds that it encrypts fail, "+
					"and a restart fails too", err, p.WritableUntil().Format(time.RFC3339)))
		}
	}
	return all
}

// reread requests that objects that could not be read while a plugin did not answer are read again. It takes effect
// once the Keeper runs.
func (k *Keeper) reread() {
	select {
	case k.again <- struct{}{}:
	default: // already requested
	}
}

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

// readAgain writes the unreadable objects unchanged, because caches follow writes. It returns how many failed, and the
// first error. Objects whose plugin is away again fail without a call to it.
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

// begin returns the component's context, and a function to call at the end of an operation; nil while it does not run.
func (k *Keeper) begin() (ctx context.Context, done func()) {
	k.lifeMu.Lock()
	defer k.lifeMu.Unlock()
	if k.life == nil {
		return nil, nil
	}
	k.ops.Add(1)
	return k.life, k.ops.Done
}
