package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/coracle-dev/coracle/pkg/base/jointoken"
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

// CreateToken creates a join token and prints it or, with command, the command that joins a machine. A life of 0
// means no expiry.
func CreateToken(ctx context.Context, c *command.Cluster, life time.Duration, description string, command bool,
	out io.Writer) error {
	authority := c.REST.CAData
	if len(authority) == 0 && c.REST.CAFile != "" {
		var err error
		if authority, err = os.ReadFile(c.REST.CAFile); err != nil {
			return err
		}
	}
	if len(authority) == 0 {
		return errors.New("the kubeconfig has no certificate authority data, which machines need to verify the server")
	}
	token, err := jointoken.Create(ctx, c.Client, authority, life, description, time.Now())
	if err != nil {
		return err
	}
	if command {
		_, err = fmt.Fprintf(out, "echo %s | coracle agent --join %s --token -\n", token, c.REST.Host)
		return err
	}
	_, err = fmt.Fprintln(out, token)
	return err
}

// Tokens lists the join tokens.
func Tokens(ctx context.Context, c *command.Cluster, out io.Writer) error {
	all, err := jointoken.List(ctx, c.Client)
	if err != nil {
		return err
	}
	if len(all) == 0 {
		_, err := fmt.Fprintln(out, "No join tokens. Make one: coracle token create")
		return err
	}
	now := time.Now()
	return command.Table(out, "ID\tAGE\tEXPIRES\tDESCRIPTION", func(line func(...any)) {
		for _, t := range all {
			expires := "never"
			switch {
			case t.Expired(now):
				expires = "expired"
			case !t.Expires.IsZero():
				expires = "in " + duration.HumanDuration(t.Expires.Sub(now))
			}
			line(t.ID, duration.HumanDuration(now.Sub(t.Created)), expires, t.Description)
		}
	})
}

// RevokeTokens revokes join tokens. Each is given by its ID or in full.
func RevokeTokens(ctx context.Context, c *command.Cluster, ids []string, out io.Writer) error {
	for _, id := range ids {
		if t, err := jointoken.Parse(id); err == nil {
			id = t.ID
		}
		if err := jointoken.Revoke(ctx, c.Client, id); err != nil {
			return err
		}
		fmt.Fprintf(out, "token %s revoked\n", id)
	}
	return nil
}
