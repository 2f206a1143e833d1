package control

import (
	"context"
	"errors"
	"fmt"
	"net/http"
)

// Encryption is what `coracle secrets-encrypt status -o json` prints.
type Encryption struct {
	Enabled bool   `json:"enabled"`           // a configuration is in use
	File    string `json:"file,omitempty"`    // which holds it
	Managed bool   `json:"managed,omitempty"` // the file is the server's own
	// Writes say how new objects of a resource, or wildcard, are written; Stored how many objects are stored in which way.
	Writes []EncryptionRule  `json:"writes,omitempty"`
	Stored []EncryptionCount `json:"stored,omitempty"`
	// Warnings need somebody's attention, in words.
	Warnings []string `json:"warnings,omitempty"`
}

// EncryptionRule is a resource and how its objects are written. Provider and Key are empty where they are not encrypted.
type EncryptionRule struct {
	Resource string `json:"resource"`
	Provider string `json:"provider,omitempty"`
	Key      string `json:"key,omitempty"`
}

// EncryptionCount is how many objects of a resource are stored in one way.
type EncryptionCount struct {
	EncryptionRule
	Objects    int  `json:"objects"`
	Unreadable int  `json:"unreadable,omitempty"` // of Objects
	Current    bool `json:"current"`              // new objects are written so
}

// EncryptionBackend is the part of a process that encrypts what it stores.
type EncryptionBackend interface {
	// Encryption reads everything that is stored, and counts.
	Encryption(ctx context.Context) (Encryption, error)
	// ChangeEncryption does one of the Encryption* actions to its end, also if ctx ends, and tells its progress.
	ChangeEncryption(action string, tell func(message string)) error
}

// The actions of ChangeEncryption.
const (
	EncryptionRotate    = "rotate-keys"
	EncryptionReencrypt = "reencrypt"
	EncryptionEnable    = "enable"
	EncryptionDisable   = "disable"
)

func (s *Server) encryption(mux *http.ServeMux) {
	backend, ok := s.backend.(EncryptionBackend)
	if !ok {
		return
	}
	mux.HandleFunc("GET /encryption", func(w http.ResponseWriter, r *http.Request) {
		tell := newTeller(w)
		defer beat(tell)()
		status, err := backend.Encryption(r.Context())
		if err != nil {
			tell(Event{Error: err.Error()})
			return
		}
		tell(Event{Encryption: &status, Done: true})
	})
	mux.HandleFunc("POST /encryption/{action}", func(w http.ResponseWriter, r *http.Request) {
		tell := newTeller(w)
		defer beat(tell)()
		err := backend.ChangeEncryption(r.PathValue("action"), func(m string) { tell(Event{Message: m}) })
		finish(tell, nil, err)
	})
}

// Encryption asks how the server's objects are stored.
func (c *Client) Encryption(ctx context.Context) (Encryption, error) {
	last, err := c.call(ctx, http.MethodGet, "/encryption", nil, nil, c.Silence)
	if err == nil && last.Encryption == nil {
		err = errors.New("the process answered without a status")
	}
	if err != nil {
		return Encryption{}, err
	}
	return *last.Encryption, nil
}

// ChangeEncryption does one of the Encryption* actions, which goes on if ctx ends.
func (c *Client) ChangeEncryption(ctx context.Context, action string, tell func(Event)) error {
	_, err := c.call(ctx, http.MethodPost, fmt.Sprintf("/encryption/%s", action), nil, tell, c.Silence)
	return err
}
