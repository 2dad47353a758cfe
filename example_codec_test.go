package weir_test

import (
	"context"
	"fmt"
	"log"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/weircrypt"
)

// Args, outputs and errors of a kind are encrypted with keys that the database does not have.
func ExampleClient_WithCodec() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	// In your program: os.Getenv("JOB_KEYS"). The first key encrypts, the others decrypt older jobs.
	codec, err := weircrypt.Parse("2026-11:hYDxxEsaY6CQ9OQ5rbqdqQ5T2BNHUQGp/cwLh8CpgLc= 2026-05:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=")
	if err != nil {
		log.Fatal(err)
	}
	client := weir.NewClient(connect()).WithCodec(codec, "send_mail")

	job, err := client.Enqueue(ctx, SendMail{To: "ada@example.org"}, &weir.Options{Queue: "letters"})
	if err != nil {
		log.Fatal(err)
	}
	info, err := client.Job(ctx, job.ID)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("stored:", string(info.Args))

	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(_ context.Context, job *weir.Job[SendMail]) error {
		fmt.Println("mail to", job.Args.To)
		stop() // ends this example
		return nil
	})
	run(ctx, client, "letters", handlers)

	if err := client.Decrypt(context.Background(), info); err != nil {
		log.Fatal(err)
	}
	fmt.Println("decrypted:", string(info.Args))
	// Output:
	// stored: {"encrypted":"2026-11"}
	// mail to ada@example.org
	// attempt 1: completed (<nil>)
	// decrypted: {"to":"ada@example.org"}
}
