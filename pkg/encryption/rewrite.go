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
	// page is how many values are read at once. All that is stored is a fraction of the memory (store.Config.QuotaBytes).
	page = 500
	// writers is how many values are written at once, so that the store syncs its log once for many.
	writers = 16
	// mostRounds bounds how often everything is read to find that nothing is left to rewrite. Two are enough, unless the
	// configuration changes meanwhile.
	mostRounds = 10
)

// What an operation fails with, for errors.Is.
var (
	errOff  = errors.New("encryption is not configured: start with --secrets-encryption, or with --encryption-provider-config FILE")
	errBusy = errors.New("another operation on the encryption is in progress: wait for its end")
)

// operate runs one operation at a time, which goes on if who asked for it goes away, and ends with the component.
func (k *Keeper) operate(f func(context.Context) error) error {
	if k.cfg.File == "" {
		return errOff
	}
	k.mu.Lock()
	ctx := k.life
	if ctx != nil {
		k.ops.Add(1)
	}
	k.mu.Unlock()
	if ctx == nil {
		return errors.New("the server is starting or stopping: try again")
	}
	defer k.ops.Done()
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

// Reencrypt writes anew what is not stored as new objects of its kind are, be it encrypted with another key or not encrypted, and so
// also decrypts where identity comes first. It can be ended anywhere, and repeated.
func (k *Keeper) Reencrypt(tell func(string)) error {
	return k.operate(func(ctx context.Context) error {
		if err := k.reload(ctx); err != nil {
			return err
		}
		n, err := k.rewrite(ctx, tell)
		if err == nil {
			tell(fmt.Sprintf("Everything is stored as the configuration says. Objects written anew: %d.", n))
		}
		return err
	})
}

// Rotate adds a new key to the managed file, writes everything anew with it, and removes the other keys. If it was ended before, it
// goes on with the key that it had added.
func (k *Keeper) Rotate(tell func(string)) error {
	return k.operate(func(ctx context.Context) error {
		if !k.cfg.Managed {
			return fmt.Errorf("the keys are in %s, which only you change: put a new key in front of the others there, run `coracle secrets-encrypt reencrypt`, and then remove the others", k.cfg.File)
		}
		var resumed bool
		begun, err := k.edit(ctx, func(c *apiserverv1.EncryptionConfiguration) error {
			if !encrypts(c) {
				return errors.New("encryption is disabled: `coracle secrets-encrypt enable` comes first")
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
			tell(fmt.Sprintf("Finishing the rotation to the key %s, which was begun before.", name))
		} else {
			tell(fmt.Sprintf("Added the key %s, which is used from now on.", name))
		}
		if err := k.step("added"); err != nil {
			return err
		}
		n, err := k.rewrite(ctx, tell)
		if err != nil {
			return fmt.Errorf("the earlier keys are kept: %w", err)
		}
		if err := k.step("rewritten"); err != nil {
			return err
		}
		if _, err := k.edit(ctx, func(c *apiserverv1.EncryptionConfiguration) error {
			if boxes(c)[0].Keys[0].Name != name {
				return errors.New("another key was put first meanwhile, the earlier keys are kept: run it again")
			}
			dropKeys(c)
			return nil
		}); err != nil {
			return err
		}
		tell(fmt.Sprintf("Removed the earlier keys. Objects written anew: %d.", n))
		return k.step("dropped")
	})
}

// Enable has new objects encrypted with the managed file's key, or no longer. What is stored stays as it is: see Reencrypt.
func (k *Keeper) Enable(on bool, tell func(string)) error {
	return k.operate(func(ctx context.Context) error {
		if !k.cfg.Managed {
			return fmt.Errorf("the providers are in %s, which only you change: the first one of a resource writes", k.cfg.File)
		}
		_, err := k.edit(ctx, func(c *apiserverv1.EncryptionConfiguration) error {
			setWriting(c, on)
			return nil
		})
		if err == nil && on {
			tell("What is written from now on is encrypted. To encrypt what is stored already: coracle secrets-encrypt reencrypt")
		} else if err == nil {
			tell("What is written from now on is not encrypted. To decrypt what is stored already: coracle secrets-encrypt reencrypt")
		}
		return err
	})
}

// edit changes the managed file, and then the configuration in use. The file comes first: nothing is written with a key that a crash
// could take away.
func (k *Keeper) edit(ctx context.Context, change func(*apiserverv1.EncryptionConfiguration) error) (*apiserverv1.EncryptionConfiguration, error) {
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

// each reads all that is stored, page by page; left is how many values come after the page.
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

// rewrite goes over everything until nothing is left that would be written otherwise today, and then drops the history, which may
// hold values of earlier keys. It answers how many values it wrote.
func (k *Keeper) rewrite(ctx context.Context, tell func(string)) (total int64, err error) {
	for range mostRounds {
		// What was encrypted with an earlier configuration, and whose writer gave up waiting, is in the store from here on.
		if err := k.cfg.Store.Settle(ctx); err != nil {
			return total, err
		}
		n, raced, err := k.pass(ctx, tell)
		total += n
		if err != nil {
			return total, err
		}
		if n > 0 || raced > 0 {
			if err := k.step("pass"); err != nil {
				return total, err
			}
			continue // and look again, now at what has become of it
		}
		rev, err := k.cfg.Store.Revision(ctx)
		if err != nil {
			return total, err
		}
		return total, k.cfg.Store.Compact(ctx, rev)
	}
	return total, errors.New("objects keep being written with another configuration than the present one: try again")
}

// pass goes over everything once: n values were written anew, and raced were changed by somebody else meanwhile. Values that cannot
// be read are left as they are, and are an error in the end.
func (k *Keeper) pass(ctx context.Context, tell func(string)) (n, raced int64, err error) {
	var wrote, lost, seen atomic.Int64
	var mu sync.Mutex
	var broken []string
	unread := map[string]int64{} // what the cache could not decrypt earlier, by revision: it is written anew so that the cache reads it again
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
					lost.Add(1)
				default:
					return fmt.Errorf("could not write %s anew: %w", kv.Key, err)
				}
				return nil
			})
		}
		if err := group.Wait(); err != nil {
			return err
		}
		if done := seen.Add(int64(len(kvs))); wrote.Load() > 0 {
			tell(fmt.Sprintf("Looked at %d of %d objects, wrote %d anew.", done, done+left, wrote.Load()))
		}
		return nil
	})
	if err == nil && len(broken) > 0 {
		err = fmt.Errorf("%d objects cannot be read, and are left as they are: %s", len(broken), broken[0])
	}
	return wrote.Load(), lost.Load(), err
}
