package cache

import (
	"bytes"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// offers holds the objects of writes in flight, so that the cache need not decode what this process wrote. It is
// bounded by the number of writes in flight.
type offers struct{ byKey sync.Map } // string to *Offer

// Offer is an object being written to the store.
type Offer struct {
	c      *Cache
	key    string
	value  []byte
	object client.Object
}

// Offer announces that value, about to be written at key, is the encoding of object, which must not be modified any
// more. The entry for that write will hold a shallow copy of object. The caller must call Withdraw once the write has
// failed or the cache has applied it.
func (c *Cache) Offer(key string, value []byte, object client.Object) *Offer {
	o := &Offer{c: c, key: key, value: value, object: object}
	c.offers.byKey.Store(key, o)
	return o
}

// Withdraw ends the offer.
func (o *Offer) Withdraw() { o.c.offers.byKey.CompareAndDelete(o.key, o) }

// take returns the object offered for exactly this value, or nil.
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
