package registry

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/storage"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/state/cache"
	"github.com/coracle-dev/coracle/pkg/state/store"
)

// List is a page of a collection. Continue and Remaining are as in metav1.ListMeta.
type List struct {
	Entries   []*cache.Entry
	Revision  int64
	Continue  string
	Remaining *int64
}

// List reads a collection. Without a resourceVersion it reflects every write acknowledged before the call. All
// pages show the revision of the first page. After that is compacted, the rest fails with 410 Expired and a token
// for an inconsistent continuation.
func (r *Registry) List(ctx context.Context, t Target, o metav1.ListOptions) (*List, error) {
	c, err := r.begin(ctx, t, "list", nil)
	if err != nil {
		return nil, err
	}
	l, err := c.list(&o)
	if err != nil {
		return nil, err
	}
	l.Entries, err = asAll(c.Resource, l.Entries)
	return l, err
}

// maxContinueBytes is the maximum length of a continue token. Tokens made by this server hold a single key.
const maxContinueBytes = 4 << 10

func (c *call) list(o *metav1.ListOptions) (*List, error) {
	if err := checkOptions(o, false); err != nil {
		return nil, err
	}
	q, err := c.query(o)
	if err != nil {
		return nil, err
	}
	rev, err := parseRevision(o.ResourceVersion)
	if err != nil {
		return nil, err
	}
	prefix := c.row.Prefix(c.Namespace)
	if o.Continue != "" {
		if len(o.Continue) > maxContinueBytes {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid continue token: it is longer than %d bytes",
				maxContinueBytes))
		}
		from, at, err := storage.DecodeContinue(o.Continue, prefix)
		if err != nil {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid continue token: %v", err))
		}
		if rev != 0 {
			return nil, apierrors.NewBadRequest("specifying resource version is not allowed when using continue")
		}
		if at > 0 {
			return c.listAt(q, o, prefix, from, at)
		}
		if _, err := c.sync(c.ctx); err != nil {
			return nil, err
		}
		return c.listNow(q, o, prefix, from)
	}
	if err := c.reach(o.ResourceVersion, rev); err != nil {
		return nil, err
	}
	exact := o.ResourceVersionMatch == metav1.ResourceVersionMatchExact || o.ResourceVersionMatch == "" && o.Limit > 0
	if rev > 0 && exact {
		return c.listAt(q, o, prefix, prefix, rev)
	}
	return c.listNow(q, o, prefix, prefix)
}

func (c *call) listNow(q cache.Query, o *metav1.ListOptions, prefix, from string) (*List, error) {
	if broken := c.cache.Unreadable(prefix); len(broken) > 0 {
		return nil, StoreReadError(c.gr(), broken)
	}
	if c.row.PerVersion && c.row != c.Resource && q.Fields != nil && !q.Fields.Empty() {
		// Convert all objects at once: the selection would convert them one by one.
		every, _ := c.cache.List(c.row, cache.Query{Namespace: q.Namespace})
		if _, err := asAll(c.Resource, every); err != nil {
			return nil, err
		}
	}
	return c.listCached(q, o, prefix, from, 0)
}

// listCached lists from the cache, starting at the key from, as of revision rev (0: now). It returns nil if the
// cache does not have that revision.
func (c *call) listCached(q cache.Query, o *metav1.ListOptions, prefix, from string, rev int64) (*List, error) {
	p, ok := c.cache.Page(c.selecting(), q, from, o.Limit, rev)
	if !ok {
		return nil, nil //nolint:nilnil // it is elsewhere
	}
	l := &List{Entries: p.Entries, Revision: p.Revision}
	if !p.More {
		return l, nil
	}
	return l, l.more(q, prefix, p.Remaining)
}

// more sets the continue token and, if it is known, RemainingItemCount on a page that is not the last.
func (l *List) more(q cache.Query, prefix string, left int64) error {
	last := l.Entries[len(l.Entries)-1].Key
	token, err := storage.EncodeContinue(last+"\x00", prefix, l.Revision)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	l.Continue = token
	if all(q) {
		l.Remaining = &left
	}
	return nil
}

// pageKeys is the number of keys read from the store at a time when selectors filter the result.
const pageKeys = 1000

// listAt lists an older revision, from the cache if possible, else from the store. Objects unchanged since then
// come from the cache.
func (c *call) listAt(q cache.Query, o *metav1.ListOptions, prefix, from string, rev int64) (*List, error) {
	if rev >= c.store.Compacted() && len(c.cache.Unreadable(prefix)) == 0 {
		if l, err := c.listCached(q, o, prefix, from, rev); l != nil || err != nil {
			return l, err
		}
	}
	l := &List{Revision: rev, Entries: []*cache.Entry{}}
	for {
		want := int64(pageKeys)
		if o.Limit > 0 && all(q) {
			want = o.Limit - int64(len(l.Entries))
		}
		kvs, _, left, err := c.store.Range(c.ctx, prefix, from, want, rev)
		switch {
		case errors.Is(err, store.ErrCompacted):
			return nil, c.expired(o, prefix, from)
		case errors.Is(err, store.ErrFuture):
			return nil, storage.NewTooLargeResourceVersionError(uint64(rev), uint64(c.cache.Revision()), 1)
		case err != nil:
			return nil, status(err, c.gr(), "")
		}
		for i, kv := range kvs {
			e, err := c.entryOf(kv)
			if err != nil {
				return nil, err
			}
			if e, err = As(c.selecting(), e); err != nil {
				return nil, err
			}
			if !selects(c.selecting(), q, e) {
				continue
			}
			l.Entries = append(l.Entries, e)
			if after := left + int64(len(kvs)-i-1); o.Limit > 0 && int64(len(l.Entries)) == o.Limit && after > 0 {
				return l, l.more(q, prefix, after)
			}
		}
		if left == 0 || len(kvs) == 0 {
			return l, nil
		}
		from = kvs[len(kvs)-1].Key + "\x00"
	}
}

func (c *call) entryOf(kv store.KV) (*cache.Entry, error) {
	namespace, name, _ := strings.Cut(kv.Key[len(c.row.Prefix("")):], "/")
	if !c.row.Namespaced {
		namespace, name = "", namespace
	}
	if e := c.cache.Get(c.row, namespace, name); e != nil && e.Revision == kv.Revision {
		return e, nil
	}
	obj, err := client.Object(nil), kv.Err
	if err == nil {
		obj, err = c.row.Decode(kv.Value, kv.Revision)
	}
	if err != nil {
		return nil, StoreReadError(c.gr(), []cache.Unreadable{{Key: kv.Key, Revision: kv.Revision, Err: err}})
	}
	return cache.NewEntry(c.row, kv.Key, obj, kv.Revision), nil
}

func selects(row *kind.Resource, q cache.Query, e *cache.Entry) bool {
	if q.Labels != nil && !q.Labels.Matches(labels.Set(e.Object.GetLabels())) {
		return false
	}
	return q.Fields == nil || q.Fields.Empty() || q.Fields.Matches(row.Fields(e.Object))
}

// expired is upstream's response to a continue token whose revision is compacted: 410, with a new token for the
// rest of the collection in its current state.
func (c *call) expired(o *metav1.ListOptions, prefix, from string) error {
	if o.Continue == "" {
		return apierrors.NewResourceExpired(fmt.Sprintf("The resourceVersion for the provided list is too old: %s",
			o.ResourceVersion))
	}
	err := apierrors.NewResourceExpired("The provided continue parameter is too old " +
		"to display a consistent list result. You can start a new list without the continue parameter, or use the " +
		"continue token in this response to retrieve the remainder of the results. Continuing with the provided " +
		"token results in an inconsistent list - objects that were created, modified, or deleted between the time " +
		"the first chunk was returned and now may show up in the list.")
	token, tokenErr := storage.EncodeContinue(from, prefix, -1)
	if tokenErr != nil {
		return apierrors.NewInternalError(tokenErr)
	}
	err.ErrStatus.Continue = token
	return err
}
