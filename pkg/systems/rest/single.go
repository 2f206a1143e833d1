package rest

import (
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/systems/rest/wire"
)

// decoded returns a handler that decodes the request's body first.
func decoded[T any](handle func(*Call, *T) error) func(*Call) error {
	return func(c *Call) error {
		in := new(T)
		if err := c.Decode(in); err != nil {
			return err
		}
		return handle(c, in)
	}
}

// single serves one object of a kind: the object that find returns for a request.
type single[T ctrl.Object] struct {
	find func(*Call) (T, error)
	// answer answers with an object.
	answer func(*Call, T) error
	// missing is the error if another client deletes the object at the same time. deleted is the answer of remove.
	missing error
	deleted string
}

func (s single[T]) get(c *Call) error {
	o, err := s.find(c)
	if err != nil {
		return err
	}
	return s.answer(c, o)
}

// change calls write with a copy of the object, again after a conflict, and answers with that copy.
func (s single[T]) change(c *Call, write func(T) error) error {
	var next T
	err := again(c, func() error {
		o, err := s.find(c)
		if err != nil {
			return err
		}
		next = o.DeepCopyObject().(T)
		return write(next)
	})
	if apierrors.IsNotFound(err) {
		return s.missing
	}
	if err != nil {
		return err
	}
	return s.answer(c, next)
}

func (s single[T]) remove(c *Call) error {
	o, err := s.find(c)
	if err != nil {
		return err
	}
	if err := c.server.cluster.Delete(c, o); apierrors.IsNotFound(err) {
		return s.missing
	} else if err != nil {
		return err
	}
	return c.Answer(http.StatusOK, wire.Message{Message: s.deleted})
}
