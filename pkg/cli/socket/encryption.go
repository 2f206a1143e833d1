package socket

import (
	"context"
	"errors"
	"fmt"
	"net/http"
)

// Encryption is what `coracle secrets-encrypt status -o json` prints.
type Encryption struct {
	Enabled bool   `json:"enabled"`           // a configuration is in use
	File    string `json:"file,omitempty"`    // the configuration file
	Managed bool   `json:"managed,omitempty"` // the file is managed by the server
	// Writes has the rules for new objects, by resource or wildcard. Stored counts the existing objects by how they
	// are stored.
	Writes []EncryptionRule  `json:"writes,omitempty"`
	Stored []EncryptionCount `json:"stored,omitempty"`
	// Warnings are problems that need attention.
	Warnings []string `json:"warnings,omitempty"`
}

// EncryptionRule describes how new objects of a resource are stored. Provider and Key are empty without encryption.
type EncryptionRule struct {
	Resource string `json:"resource"`
	Provider string `json:"provider,omitempty"`
	Key      string `json:"key,omitempty"`
}

// EncryptionCount counts the objects of a resource that are stored in the same way.
type EncryptionCount struct {
	EncryptionRule
	Objects    int  `json:"objects"`
	Unreadable int  `json:"unreadable,omitempty"` // included in Objects
	Current    bool `json:"current"`              // new objects are stored in the same way
}

// EncryptionBackend is the part of a process that encrypts stored objects.
type EncryptionBackend interface {
	// Encryption reads all stored objects to count them.
	Encryption(ctx context.Context) (Encryption, error)
	// ChangeEncryption runs one of the Encryption* actions to completion and reports progress.
	ChangeEncryption(action string, progress func(message string)) error
}

// Actions of ChangeEncryption.
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
		progress := newProgressWriter(w)
		defer beat(progress)()
		status, err := backend.Encryption(r.Context())
		if err != nil {
			progress(Event{Error: err.Error()})
			return
		}
		progress(Event{Encryption: &status, Done: true})
	})
	mux.HandleFunc("POST /encryption/{action}", func(w http.ResponseWriter, r *http.Request) {
		progress := newProgressWriter(w)
		defer beat(progress)()
		err := backend.ChangeEncryption(r.PathValue("action"), func(m string) { progress(Event{Message: m}) })
		finish(progress, nil, err)
	})
}

// Encryption returns the server's encryption rules and how its objects are stored.
func (c *Client) Encryption(ctx context.Context) (Encryption, error) {
	last, err := c.call(ctx, http.MethodGet, "/encryption", nil, nil, c.Silence)
	if err == nil && last.Encryption == nil {
		err = errors.New("the process responded without a status")
	}
	if err != nil {
		return Encryption{}, err
	}
	return *last.Encryption, nil
}

// ChangeEncryption runs one of the Encryption* actions. The action continues if ctx ends.
func (c *Client) ChangeEncryption(ctx context.Context, action string, progress func(Event)) error {
	_, err := c.call(ctx, http.MethodPost, fmt.Sprintf("/encryption/%s", action), nil, progress, c.Silence)
	return err
}
