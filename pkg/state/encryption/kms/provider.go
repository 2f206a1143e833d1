// Package kms encrypts stored values with keys that a KMS plugin protects (KMS v2, KEP-3299). This process generates a
// seed, from which the key of each value is derived; the plugin encrypts the seed, and its encrypted form is stored
// with each value. The format and cryptography are upstream's
// (k8s.io/apiserver/pkg/storage/value/encrypt/envelope/kmsv2).
//
// Invariants: each call to a plugin ends within its timeout. While a plugin does not answer, only its provider's loop
// calls it, not each read. A seed is used for writes only if the plugin has confirmed its key within the last 3
// minutes.
package kms

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apiserver/pkg/storage/value"
	envelope "k8s.io/apiserver/pkg/storage/value/encrypt/envelope/kmsv2"
	"k8s.io/kms/pkg/service"
)

// Intervals as upstream. KMS v2 has no notifications: a plugin's key is checked every interval, after a failure every
// retry. A seed is used for writes while the plugin has confirmed its key within writable.
const (
	interval = time.Minute
	retry    = 10 * time.Second
	writable = 3 * time.Minute
)

// Config configures a Provider.
type Config struct {
	// Name is part of the stored values. Endpoint is the URL of the plugin's Unix socket. Timeout bounds each call.
	Name, Endpoint string
	Timeout        time.Duration
}

// Provider encrypts and decrypts values with the help of one plugin. It cannot encrypt or decrypt until Check has
// succeeded once.
type Provider struct {
	cfg     Config
	plugin  service.Service
	close   func() // closes the connection
	values  value.Transformer
	server  string // identifies this process in upstream's metrics
	state   atomic.Pointer[envelope.State]
	failed  atomic.Pointer[error] // why the plugin is unhealthy; nil if healthy
	asking  sync.Mutex            // held by Check
	hurry   chan struct{}         // capacity 1: a call has found the plugin unavailable
	stop    context.CancelFunc    // stops the loop; nil until Start
	stopped chan struct{}
}

var _ value.Transformer = (*Provider)(nil)

// New returns a Provider. It does not connect yet.
func New(cfg Config) (*Provider, error) {
	plugin, err := connect(cfg.Endpoint, cfg.Timeout)
	if err != nil {
		return nil, err
	}
	return provide(cfg, plugin, plugin.close), nil
}

func provide(cfg Config, plugin service.Service, end func()) *Provider {
	p := &Provider{cfg: cfg, plugin: plugin, close: end, server: string(uuid.NewUUID()), hurry: make(chan struct{}, 1)}
	p.values = envelope.NewEnvelopeTransformer(patient{p}, cfg.Name, p.current, p.server)
	return p
}

// Start keeps the seed current until Close. It calls recovered when the plugin is healthy again after a failure;
// recovered must not call Close.
func (p *Provider) Start(log *slog.Logger, recovered func()) {
	ctx, cancel := context.WithCancel(context.Background())
	p.stop, p.stopped = cancel, make(chan struct{})
	go p.checkHealth(ctx, log, recovered)
}

// Close ends the loop of Start, and the connection.
func (p *Provider) Close() {
	if p.stop != nil {
		p.stop()
		<-p.stopped
	}
	p.close()
}

func (p *Provider) checkHealth(ctx context.Context, log *slog.Logger, recovered func()) {
	defer close(p.stopped)
	pause, logged := time.NewTimer(interval), ""
	defer pause.Stop()
	var asked time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
		case <-p.hurry:
			if left := retry - time.Since(asked); left > 0 { // its status may be healthy while decryption still fails
				pause.Reset(left)
				continue
			}
		}
		was := p.Health()
		err := p.Check(ctx)
		asked = time.Now()
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			pause.Reset(retry)
			if logged != err.Error() {
				log.Error("KMS plugin is not healthy", "plugin", p.cfg.Name, "error", err)
			}
			logged = err.Error()
			continue
		case was != nil && p.Health() == nil:
			log.Info("KMS plugin is healthy again", "plugin", p.cfg.Name)
			recovered()
		}
		logged = ""
		pause.Reset(interval)
	}
}

// Health returns the last failure; nil when the plugin has answered as healthy since, and before the first call.
func (p *Provider) Health() error {
	if err := p.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// WritableUntil is when writes begin to fail unless the plugin becomes healthy; zero before the first success of Check.
func (p *Provider) WritableUntil() time.Time {
	if s := p.state.Load(); s != nil {
		return s.ExpirationTimestamp
	}
	return time.Time{}
}

// Name is the configured name.
func (p *Provider) Name() string { return p.cfg.Name }

// Endpoint is the URL of the plugin's socket.
func (p *Provider) Endpoint() string { return p.cfg.Endpoint }

// Check requests the plugin's status, and makes a new seed if its key has changed. It takes at most two timeouts.
func (p *Provider) Check(ctx context.Context) error {
	p.asking.Lock()
	defer p.asking.Unlock()
	was := p.failed.Load()
	err := p.ask(ctx)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		err = fmt.Errorf("KMS plugin %q at %s: %w", p.cfg.Name, p.cfg.Endpoint, err)
		p.failed.Store(&err)
		return err
	}
	p.failed.CompareAndSwap(was, nil) // keep the error of a call that failed meanwhile
	return nil
}

func (p *Provider) ask(ctx context.Context) error {
	began := time.Now() // before the call: the confirmation counts from here
	s, err := p.plugin.Status(ctx)
	if err != nil {
		return err
	}
	if s.Version != envelope.KMSAPIVersionv2 && s.Version != envelope.KMSAPIVersionv2beta1 {
		return fmt.Errorf("it speaks version %.64q of the KMS API, not v2", s.Version)
	}
	if _, err := envelope.ValidateKeyID(s.KeyID); err != nil {
		return fmt.Errorf("its status names no valid key: %w", err)
	}
	if err := p.use(ctx, s.KeyID, began); err != nil {
		return err
	}
	if s.Healthz != "ok" {
		return fmt.Errorf("the plugin reports that it is not healthy: %.1024q", s.Healthz)
	}
	return nil
}

// use lets writes use the plugin's key until writable after began. After a failure the earlier state stays in use
// until it expires.
func (p *Provider) use(ctx context.Context, key string, began time.Time) error {
	if was := p.state.Load(); was != nil && was.EncryptedObjectKeyID == key {
		next := *was
		next.ExpirationTimestamp = began.Add(writable)
		p.state.Store(&next)
		return nil
	}
	uid := string(uuid.NewUUID())
	seed, object, cacheKey, err := envelope.GenerateTransformer(ctx, uid, p.plugin, true)
	if err != nil {
		return fmt.Errorf("it could not encrypt a new seed: %w", err)
	}
	if object.KeyID != key {
		return errors.New("it encrypts with another key than its status names: its key may be changing")
	}
	p.state.Store(&envelope.State{
		Transformer: seed, UID: uid, CacheKey: cacheKey, KMSProviderName: p.cfg.Name,
		ExpirationTimestamp:  began.Add(writable),
		EncryptedObjectKeyID: object.KeyID, EncryptedObjectEncryptedDEKSource: object.EncryptedDEKSource,
		EncryptedObjectAnnotations: object.Annotations, EncryptedObjectEncryptedDEKSourceType: object.EncryptedDEKSourceType,
	})
	return nil
}

func (p *Provider) current() (envelope.State, error) {
	if s := p.state.Load(); s != nil {
		return *s, nil
	}
	if err := p.Health(); err != nil {
		return envelope.State{}, err
	}
	return envelope.State{}, fmt.Errorf("%w: %q has not been asked yet", ErrUnavailable, p.cfg.Name)
}

// TransformToStorage implements value.Transformer. It calls no plugin.
func (p *Provider) TransformToStorage(ctx context.Context, data []byte, c value.Context) ([]byte, error) {
	out, err := p.values.TransformToStorage(ctx, data, c)
	if health := p.Health(); err != nil && health != nil {
		err = fmt.Errorf("nothing can be encrypted until it answers: %w", health)
	}
	return out, err
}

// TransformFromStorage implements value.Transformer. It calls the plugin if the seed of a value is not known yet.
func (p *Provider) TransformFromStorage(ctx context.Context, data []byte,
	c value.Context) (out []byte, stale bool, err error) {
	return p.values.TransformFromStorage(ctx, data, c)
}

// patient is the plugin for reads. They fail at once while the plugin is known not to answer.
type patient struct{ *Provider }

func (p patient) Decrypt(ctx context.Context, uid string, req *service.DecryptRequest) ([]byte, error) {
	if err := p.Health(); errors.Is(err, ErrUnavailable) {
		return nil, err
	}
	out, err := p.plugin.Decrypt(ctx, uid, req)
	if errors.Is(err, ErrUnavailable) && ctx.Err() == nil {
		err = fmt.Errorf("KMS plugin %q at %s: %w", p.cfg.Name, p.cfg.Endpoint, err)
		p.failed.Store(&err)
		select {
		case p.hurry <- struct{}{}:
		default:
		}
	}
	return out, err
}

func (p patient) Encrypt(ctx context.Context, uid string, data []byte) (*service.EncryptResponse, error) {
	return p.plugin.Encrypt(ctx, uid, data)
}

func (p patient) Status(ctx context.Context) (*service.StatusResponse, error) {
	return p.plugin.Status(ctx)
}
