package encryption

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"

	"github.com/coracle-dev/coracle/pkg/kind"
)

const (
	page = 500
	// writers is the number of concurrent writes, so that one sync of the store's log covers many.
	writers = 16
	// mostRounds limits how often all values are read until none is left to rewrite. Two rounds suffice unless the
	// configuration changes meanwhile.
	mostRounds = 10
)

// Errors of operations, for errors.Is.
var (
	errOff = errors.New("encryption is not configured: start with --secrets-encryption, or with " +
		"--encryption-provider-config FILE")
	errBusy = errors.New("another encryption operation is in progress: wait until it has finished")
)

// operate runs an operation, one at a time. It continues if the caller disconnects, and ends with the component.
func (k *Keeper) operate(f func(context.Context) error) error {
	if k.cfg.File == "" {
		return errOff
	}
	ctx, done := k.begin()
	if ctx == nil {
		return errors.New("the server is starting or stopping: try again")
	}
	defer done()
	if !k.working.TryLock() {
		return errBusy
	}
	defer k.working.Unlock()
	return f(ctx)
}

func (k *Keeper) step(name string) error {
	if k.at == nil {
		return nil
	}
	return k.at(name)
}

// Reencrypt rewrites every value that is not stored as a new object of its kind would be. If identity is first, it
// decrypts. It can be interrupted at any point and repeated.
func (k *Keeper) Reencrypt(report func(string)) error {
	return k.operate(func(ctx context.Context) error {
		if err := k.reload(ctx); err != nil {
			return err
		}
		n, err := k.rewrite(ctx, report)
		if err == nil {
			report(fmt.Sprintf("Everything is stored as configured. Objects rewritten: %d.", n))
		}
		return err
	})
}

// Rotate adds a new key to the managed file, rewrites all values with it, and removes the other keys. After an
// interruption it continues with the key that it had added.
func (k *Keeper) Rotate(report func(string)) error {
	return k.operate(func(ctx context.Context) error {
		if !k.cfg.Managed {
			return fmt.Errorf("the keys are in %s, which Coracle does not change: put a new key in front of the others there, "+
				"run `coracle secrets-encrypt reencrypt`, and then remove the others", k.cfg.File)
		}
		var resumed bool
		begun, err := k.edit(ctx, func(c *apiserverv1.EncryptionConfiguration) error {
			if !encrypts(c) {
				return errors.New("encryption is disabled: run `coracle secrets-encrypt enable` first")
			}
			if resumed = unfinished(c); resumed {
				return nil
			}
			return addKey(c, time.Now())
		})
		if err != nil {
			return err
		}
		name := boxes(begun)[0].Keys[0].Name
		if resumed {
			report(fmt.Sprintf("Continuing the interrupted rotation to the key %s.", name))
		} else {
			report(fmt.Sprintf("Added the key %s, which is used from now on.", name))
		}
		if err := k.step("added"); err != nil {
			return err
		}
		n, err := k.rewrite(ctx, report)
		if err != nil {
			return fmt.Errorf("keeping the earlier keys: %w", err)
		}
		if err := k.step("rewritten"); err != nil {
			return err
		}
		if _, err := k.edit(ctx, func(c *apiserverv1.EncryptionConfiguration) error {
			if boxes(c)[0].Keys[0].Name != name {
				return errors.New("another key was put first meanwhile, keeping the earlier keys: try again")
			}
			dropKeys(c)
			return nil
		}); err != nil {
			return err
		}
		report(fmt.Sprintf("Removed the earlier keys. Objects rewritten: %d.", n))
		return k.step("dropped")
	})
}

// Enable makes new objects encrypted with the managed file's key, or not encrypted. Stored objects do not change: see
// Reencrypt.
func (k *Keeper) Enable(on bool, report func(string)) error {
	return k.operate(func(ctx context.Context) error {
		if !k.cfg.Managed {
			return fmt.Errorf("the providers are in %s, which Coracle does not change: the first one of a resource encrypts "+
				"new objects", k.cfg.File)
		}
		_, err := k.edit(ctx, func(c *apiserverv1.EncryptionConfiguration) error {
			setWriting(c, on)
			return nil
		})
		if err == nil && on {
			report("New objects are encrypted from now on. To encrypt the stored ones: coracle secrets-encrypt reencrypt")
		} else if err == nil {
			report("New objects are not encrypted from now on. To decrypt the stored ones: coracle secrets-encrypt reencrypt")
		}
		return err
	})
}

// edit changes the managed file and then the configuration in use. The file comes first, so that no value is written
// with a key that a crash could lose.
func (k *Keeper) edit(ctx context.Context,
	change func(*apiserverv1.EncryptionConfiguration) error) (*apiserverv1.EncryptionConfiguration, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	data, _, err := read(k.cfg.File)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(data, k.data) {
		return nil, fmt.Errorf("%s has changed and is not in use yet: see `coracle status`, then try again", k.cfg.File)
	}
	c, err := ours(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", k.cfg.File, err)
	}
	if err := change(c); err != nil {
		return nil, err
	}
	if data, err = encode(c); err != nil {
		return nil, err
	}
	if bytes.Equal(data, k.data) {
		return c, nil
	}
	next, err := load(data)
	if err != nil {
		return nil, err
	}
	if err := k.readable(ctx, next); err != nil {
		return nil, err
	}
	if err := k.step("checked"); err != nil {
		return nil, err
	}
	if err := write(k.cfg.File, data); err != nil {
		return nil, err
	}
	if err := k.step("written"); err != nil {
		return nil, err
	}
	k.use(next, data)
	k.note("", "")
	return c, nil
}

// each calls f with all stored values, page by page; left is the number of values after the page.
func (k *Keeper) each(ctx context.Context, f func(kvs []kind.KV, left int64) error) error {
	for from := ""; ; {
		kvs, _, left, err := k.cfg.Store.Stored(ctx, registry, from, page, 0)
		if err != nil {
			return err
		}
		if err := f(kvs, left); err != nil {
			return err
		}
		if left == 0 || len(kvs) == 0 {
			return nil
		}
		from = kvs[len(kvs)-1].Key + "\x00"
	}
}

// rewrite makes passes until all values are stored as configured, and then compacts the history, which may contain
// values with earlier keys. It returns the number of values written.
func (k *Keeper) rewrite(ctx context.Context, report func(string)) (total int64, err error) {
	for range mostRounds {
		// After this, all values encrypted with an earlier configuration are in the store, even if their writers no
		// longer wait.
		if err := k.cfg.Store.Settle(ctx); err != nil {
			return total, err
		}
		n, raced, err := k.pass(ctx, report)
		total += n
		if err != nil {
			return total, err
		}
		if n > 0 || raced > 0 {
			if err := k.step("pass"); err != nil {
				return total, err
			}
			continue // changed values need another pass
		}
		rev, err := k.cfg.Store.Revision(ctx)
		if err != nil {
			return total, err
		}
		return total, k.cfg.Store.Compact(ctx, rev)
	}
	return total, errors.New("objects are still being written with another configuration: try again")
}

// pass visits all values once: n were rewritten, and conflicts were changed by another write meanwhile. Values that
// cannot be read are not changed, and are reported as an error at the end.
func (k *Keeper) pass(ctx context.Context, report func(string)) (n, conflicts int64, err error) {
	var wrote, raced, seen atomic.Int64
	var mu sync.Mutex
	var broken []string
	// Values that the cache could not decrypt, by revision. They are rewritten so that the cache reads them again.
	unread := map[string]int64{}
	for _, u := range k.cfg.Unreadable() {
		if errors.Is(u.Err, ErrNoKey) || errors.Is(u.Err, ErrDamaged) {
			unread[u.Key] = u.Revision
		}
	}
	err = k.each(ctx, func(kvs []kind.KV, left int64) error {
		group, ctx := errgroup.WithContext(ctx)
		group.SetLimit(writers)
		for _, kv := range kvs {
			_, current, err := k.cfg.Values.open(k.cfg.Values.current.Load(), kv.Key, kv.Value)
			if err != nil {
				mu.Lock()
				broken = append(broken, fmt.Sprintf("%s: %v", kv.Key, err))
				mu.Unlock()
				continue
			}
			if current && unread[kv.Key] != kv.Revision {
				continue
			}
			group.Go(func() error {
				if err := k.step("object"); err != nil {
					return err
				}
				err := k.cfg.Store.Reseal(ctx, kv)
				switch {
				case err == nil:
					wrote.Add(1)
				case k.cfg.Store.Superseded(err):
					raced.Add(1)
				default:
					return fmt.Errorf("could not rewrite %s: %w", kv.Key, err)
				}
				return nil
			})
		}
		if err := group.Wait(); err != nil {
			return err
		}
		if done := seen.Add(int64(len(kvs))); wrote.Load() > 0 {
			report(fmt.Sprintf("Checked %d of %d objects, rewrote %d.", done, done+left, wrote.Load()))
		}
		return nil
	})
	if err == nil && len(broken) > 0 {
		err = fmt.Errorf("%d objects cannot be read and were not changed: %s", len(broken), broken[0])
	}
	return wrote.Load(), raced.Load(), err
}
