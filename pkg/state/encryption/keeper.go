package encryption

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/state/cache"
)

// Store is the part of *store.Store that the Keeper needs.
type Store interface {
	// Stored reads values without decryption.
	Stored(ctx context.Context, prefix, from string, limit, rev int64) (kvs []kind.KV, at, remaining int64, err error)
	// Reseal encrypts a stored value again and writes it, unless it was changed meanwhile.
	Reseal(ctx context.Context, kv kind.KV) error
	// Settle returns when all earlier writes have finished.
	Settle(ctx context.Context) error
	Revision(ctx context.Context) (int64, error)
	// Compact discards the history before a revision.
	Compact(ctx context.Context, rev int64) error
	// Superseded reports whether Reseal failed because the value was changed or deleted.
	Superseded(err error) bool
}

// Config configures a Keeper.
type Config struct {
	// File is the absolute path of an EncryptionConfiguration; empty for none.
	File string
	// Managed means that File belongs to Coracle: it is generated if it does not exist.
	Managed bool
	// ManagedFile is the path that a managed File has. Without a File it is used if it exists and encrypts.
	ManagedFile string
	// Values is also the store's Config.Values.
	Values *Values
	Store  Store
	// Unreadable returns the objects that the cache could not read.
	Unreadable func() []cache.Unreadable
	Logger     *slog.Logger
}

// Keeper keeps the configuration of Values in sync with its file, and rewrites stored values when it changes. It must
// start after the cache and before every component that writes.
type Keeper struct {
	cfg Config
	// Ready is closed when all stored values are known to be readable.
	run.Readiness

	// mu guards the configuration in use and the fields derived from it. It is held while the file and the
	// configuration change together.
	mu      sync.Mutex
	data    []byte // content of the file in use; nil without one
	unsaved bool   // data has not been written to the file yet

	noteMu  sync.Mutex
	mode    string // warning about the file's mode
	problem string // why the file's content is not in use
	halfway string // warning about an unfinished rotation

	working sync.Mutex // held by the operation in progress
	lifeMu  sync.Mutex
	life    context.Context // nil while the Keeper does not run
	ops     sync.WaitGroup
	again   chan struct{} // capacity 1: requests readAgain

	// at, if not nil, is called between the steps of an operation. If it returns an error, the operation ends as if
	// the process had been killed. For tests.
	at func(step string) error
}

var _ run.Component = (*Keeper)(nil)

// New reads the file and sets it in cfg.Values.
func New(cfg Config) (*Keeper, error) {
	if cfg.File == "" && remembered(cfg.ManagedFile) {
		cfg.File, cfg.Managed = cfg.ManagedFile, true
	}
	k := &Keeper{cfg: cfg, again: make(chan struct{}, 1)}
	if cfg.File == "" {
		return k, nil
	}
	data, warning, err := read(cfg.File)
	if cfg.Managed && errors.Is(err, fs.ErrNotExist) {
		k.unsaved = true
		data, err = generate(time.Now())
	}
	var s *settings
	if err == nil {
		s, err = load(data)
	}
	if err != nil {
		return nil, fmt.Errorf("encryption configuration %s: %w", cfg.File, err)
	}
	k.use(s, data)
	k.note(warning, "")
	if warning != "" {
		cfg.Logger.Warn("encryption keys can be read by others", "file", cfg.File, "warning", warning)
	}
	return k, nil
}

// remembered reports whether the managed file encrypts: the option that made it need not be repeated at each start.
// After `coracle secrets-encrypt disable` it does not, and is read only with the option.
func remembered(managed string) bool {
	data, _, err := read(managed)
	if err != nil {
		return false
	}
	c, err := ours(data)
	return err == nil && encrypts(c)
}

func load(data []byte) (*settings, error) {
	c, err := parse(data)
	if err != nil {
		return nil, err
	}
	return compile(c)
}

// Name implements run.Component.
func (k *Keeper) Name() string { return "encryption" }

// Run fails if the cache has objects whose keys are missing; otherwise it follows the file until ctx is done.
func (k *Keeper) Run(ctx context.Context) error {
	if err := k.refuse(); err != nil {
		return err
	}
	if k.unsaved {
		if err := write(k.cfg.File, k.data); err != nil {
			return fmt.Errorf("could not write the encryption key: %w", err)
		}
		k.unsaved = false
		k.cfg.Logger.Info("generated an encryption key for Secrets", "file", k.cfg.File)
	}
	k.live(ctx)
	k.ops.Go(func() { k.rereads(ctx) })
	if k.cfg.File == "" {
		k.SetReady()
		<-ctx.Done()
	} else {
		k.watchFile(ctx)
	}
	k.ended()
	k.ops.Wait()
	return nil
}

func (k *Keeper) live(ctx context.Context) {
	k.lifeMu.Lock()
	defer k.lifeMu.Unlock()
	k.life = ctx
}

func (k *Keeper) ended() {
	k.lifeMu.Lock()
	defer k.lifeMu.Unlock()
	k.life = nil
}

// refuse returns an error if objects are encrypted with keys that are not configured.
func (k *Keeper) refuse() error {
	var missing []cache.Unreadable
	for _, u := range k.cfg.Unreadable() {
		if errors.Is(u.Err, ErrNoKey) {
			missing = append(missing, u)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	what := fmt.Sprintf("%s: %v", missing[0].Key, missing[0].Err)
	if n := len(missing) - 1; n > 0 {
		what += fmt.Sprintf(", and %d more", n)
	}
	option := "the option that was used before, --secrets-encryption or --encryption-provider-config FILE"
	if _, err := os.Stat(k.cfg.ManagedFile); err == nil {
		option = fmt.Sprintf("--secrets-encryption, which uses the keys in %s", k.cfg.ManagedFile)
	}
	advice := fmt.Sprintf("start with %s. To turn encryption off for good, then run `coracle secrets-encrypt disable`, "+
		"or put identity first in your own FILE, and `coracle secrets-encrypt reencrypt`", option)
	if k.cfg.File != "" {
		advice = fmt.Sprintf("put the provider and its key back into %s, after the providers that write. If the key is "+
			"lost, so are these objects: "+
			"with a new key of that name and provider the server starts, and the objects can be deleted one by one with the "+
			"option ignoreStoreReadErrorWithClusterBreakingPotential", k.cfg.File)
	}
	return fmt.Errorf("some stored objects cannot be read because their encryption key is not configured (%s): %s", what,
		advice)
}

// reload uses the file's content if it has changed and can read all stored values.
func (k *Keeper) reload(ctx context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	data, warning, err := read(k.cfg.File)
	if err == nil && bytes.Equal(data, k.data) {
		k.note(warning, "")
		return nil
	}
	if err == nil {
		err = k.take(ctx, data)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		problem := fmt.Sprintf("the changed encryption configuration in %s is not in use, the previous one is: %v",
			k.cfg.File, err)
		k.note(warning, problem)
		k.cfg.Logger.Error("could not use the changed encryption configuration, keeping the previous one", "file", k.cfg.File,
			"error", err)
		return errors.New(problem)
	}
	k.note(warning, "")
	k.cfg.Logger.Info("using a changed encryption configuration", "file", k.cfg.File)
	return nil
}

// take makes data the configuration in use. The caller holds mu.
func (k *Keeper) take(ctx context.Context, data []byte) error {
	next, err := load(data)
	if err != nil {
		return err
	}
	err = next.check(ctx)
	if err == nil {
		err = k.readable(ctx, next)
	}
	if err != nil {
		next.close()
		return err
	}
	next.start(k.cfg.Logger, k.reread)
	was := k.settings()
	k.use(next, data)
	was.close()
	k.reread() // objects that the previous plugins could not decrypt
	return nil
}

func (k *Keeper) use(s *settings, data []byte) {
	k.cfg.Values.use(s)
	k.data = data
	halfway := ""
	if c, err := ours(data); k.cfg.Managed && err == nil && unfinished(c) {
		halfway = "a rotation of the encryption keys is not finished: `coracle secrets-encrypt rotate-keys` finishes it"
	}
	k.noteMu.Lock()
	defer k.noteMu.Unlock()
	k.halfway = halfway
}

// readable returns an error if the settings next cannot read a value that is stored or being written now. Values that
// the present settings cannot read either are ignored.
func (k *Keeper) readable(ctx context.Context, next *settings) error {
	v := k.cfg.Values
	now, then := v.current.Load(), v.prepare(next)
	if now != nil {
		all := append([]schema.GroupResource{}, now.order...)
		for _, gr := range v.resources {
			all = append(all, gr)
		}
		for _, gr := range all {
			if err := follows(now.settings.rule(gr), next.rule(gr)); err != nil {
				return fmt.Errorf("it could not read %s written with the current one: %w", written(gr), err)
			}
		}
	}
	return k.each(ctx, func(kvs []kind.KV, _ int64) error {
		for _, kv := range kvs {
			if _, _, err := v.open(then, kv.Key, kv.Value); err != nil {
				if _, _, already := v.open(now, kv.Key, kv.Value); already == nil {
					return fmt.Errorf("it could not read %s: %w", kv.Key, err)
				}
			}
		}
		return nil
	})
}

// follows returns an error if the rule then cannot read what the rule now writes. Either may be nil, for no encryption.
func follows(now, then *rule) error {
	const key = registry + "probe"
	stored := []byte("{}")
	if now != nil {
		var err error
		if stored, err = now.seal(key, stored); err != nil {
			return err
		}
	}
	if then != nil {
		_, _, err := then.open(key, stored)
		return err
	}
	if l := labelOf(stored); l != (Label{}) {
		return fmt.Errorf("it is encrypted with the %s: %w", l, ErrNoKey)
	}
	return nil
}

func (k *Keeper) note(mode, problem string) {
	k.noteMu.Lock()
	defer k.noteMu.Unlock()
	k.mode, k.problem = mode, problem
}

// Warnings returns problems that need an administrator's attention, as text.
func (k *Keeper) Warnings() (all []string) {
	k.noteMu.Lock()
	for _, text := range []string{k.mode, k.problem, k.halfway} {
		if text != "" {
			all = append(all, text)
		}
	}
	k.noteMu.Unlock()
	all = append(all, k.pluginWarnings()...)
	if broken := k.cfg.Unreadable(); len(broken) > 0 {
		text := fmt.Sprintf("%d stored objects cannot be read, and requests for them fail, such as %s", len(broken),
			broken[0].Key)
		all = append(all, fmt.Sprintf("%s: %v", text, broken[0].Err))
	}
	return all
}
