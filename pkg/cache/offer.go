package cache

import (
	"bytes"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// offers are the objects of writes under way, so that what this process writes need not be decoded again when
// the source reports it. Their number is bounded by that of the writes.
type offers struct{ byKey sync.Map } // string to *Offer

// Offer is one object on its way to the store.
type Offer struct {
	c      *Cache
	key    string
	value  []byte
	object client.Object
}

// Offer says that value, about to be written at key, is the encoding of object, which is immutable from now on.
// The entry of that write will hold a shallow copy of it. Withdraw must be called once the write failed, or the
// cache has seen it.
func (c *Cache) Offer(key string, value []byte, object client.Object) *Offer {
	o := &Offer{c: c, key: key, value: value, object: object}
	c.offers.byKey.Store(key, o)
	return o
}

// Withdraw ends the offer.
func (o *Offer) Withdraw() { o.c.offers.byKey.CompareAndDelete(o.key, o) }

// take gives the object that was offered for exactly this value, or nil.
func (c *Cache) take(kv kind.KV) client.Object {
	v, ok := c.offers.byKey.Load(kv.Key)
	if !ok {
		return nil
	}
	if o := v.(*Offer); bytes.Equal(o.value, kv.Value) {
		return kind.AtRevision(o.object, kv.Revision)
	}
	return nil
}
