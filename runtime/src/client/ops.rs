//! The operations of a client. They mirror those of a [`Context`](crate::Context), but take buffers rather than borrow them.

use crate::client::command::{Command, InlineMessage, Submit};
use crate::client::error::{ClientSendError, CommandError};
use crate::client::{Client, Locals};
use crate::engine::MAX_COPIED_MESSAGE_BYTES;
use crate::event::Import;
use crate::ids::RemoteContext;

/// Each ends as one [`ClientEvent::Completed`](crate::ClientEvent::Completed), or as one
/// [`ClientEvent::Refused`](crate::ClientEvent::Refused) if the context did not accept it; either has the token and the buffers.
impl Client {
    /// Writes local bytes to the import's, from `offset` on.
    ///
    /// # Errors
    /// [`CommandError`], with the buffers.
    pub fn write(
        &mut self,
        import: &Import,
        offset: u64,
        from: Locals,
        token: u64,
    ) -> Result<(), CommandError<Locals>> {
        let import = *import;
        let what = Submit::Write {
            import,
            offset,
            idempotent: false,
        };
        self.submit(what, from, token)
    }

    /// Writes where it does no harm if the bytes are written twice; see [`Context::write_idempotent`](crate::Context::write_idempotent).
    ///
    /// # Errors
    /// [`CommandError`], with the buffers.
    pub fn write_idempotent(
        &mut self,
        import: &Import,
        offset: u64,
        from: Locals,
        token: u64,
    ) -> Result<(), CommandError<Locals>> {
        let what = Submit::Write {
            import: *import,
            offset,
            idempotent: true,
        };
        self.submit(what, from, token)
    }

    /// Writes, and then tells the owner: it gets [`Event::Landed`](crate::Event::Landed) with `immediate`.
    ///
    /// # Errors
    /// [`CommandError`], with the buffers.
    pub fn write_with_immediate(
        &mut self,
        import: &Import,
        offset: u64,
        from: Locals,
        immediate: u32,
        token: u64,
    ) -> Result<(), CommandError<Locals>> {
        let what = Submit::WriteImmediate {
            import: *import,
            offset,
            immediate,
        };
        self.submit(what, from, token)
    }

    /// Reads the import's bytes from `offset` on into local ones.
    ///
    /// # Errors
    /// [`CommandError`], with the buffers.
    pub fn read(
        &mut self,
        import: &Import,
        offset: u64,
        into: Locals,
        token: u64,
    ) -> Result<(), CommandError<Locals>> {
        let import = *import;
        self.submit(Submit::Read { import, offset }, into, token)
    }

    /// Adds to the 8 bytes at `offset`, whose address at the owner is a multiple of 8. The completion has the former value.
    ///
    /// # Errors
    /// [`CommandError`]; nothing was sent then.
    pub fn fetch_add(
        &mut self,
        import: &Import,
        offset: u64,
        add: u64,
        token: u64,
    ) -> Result<(), CommandError> {
        let what = Submit::FetchAdd {
            import: *import,
            offset,
            add,
        };
        self.submit_plain(what, token)
    }

    /// Stores `desired` in the 8 bytes at `offset` if they hold `expected`. The completion has the former value.
    ///
    /// # Errors
    /// [`CommandError`]; nothing was sent then.
    pub fn compare_swap(
        &mut self,
        import: &Import,
        offset: u64,
        expected: u64,
        desired: u64,
        token: u64,
    ) -> Result<(), CommandError> {
        let what = Submit::CompareSwap {
            import: *import,
            offset,
            expected,
            desired,
        };
        self.submit_plain(what, token)
    }

    /// Sends a short message; the bytes are copied now.
    ///
    /// # Errors
    /// [`ClientSendError`]; nothing was sent then. Beyond [`MAX_COPIED_MESSAGE_BYTES`] it is [`ClientSendError::TooLong`].
    pub fn send(
        &mut self,
        to: RemoteContext,
        bytes: &[u8],
        token: u64,
    ) -> Result<(), ClientSendError> {
        let message = InlineMessage::new(bytes).ok_or(ClientSendError::TooLong {
            len: bytes.len(),
            most: MAX_COPIED_MESSAGE_BYTES,
        })?;
        Ok(self.submit_plain(Submit::Send { to, message }, token)?)
    }

    /// Sends a message from buffers, without a copy.
    ///
    /// # Errors
    /// [`CommandError`], with the buffers.
    pub fn send_from(
        &mut self,
        to: RemoteContext,
        from: Locals,
        token: u64,
    ) -> Result<(), CommandError<Locals>> {
        self.submit(Submit::SendFrom { to }, from, token)
    }

    fn submit(
        &mut self,
        what: Submit,
        locals: Locals,
        token: u64,
    ) -> Result<(), CommandError<Locals>> {
        let command = Command::Submit {
            what,
            locals,
            token,
        };
        self.send_command(command, |command| match command {
            Command::Submit { locals, .. } => Some(locals),
            _ => None,
        })
    }

    fn submit_plain(&mut self, what: Submit, token: u64) -> Result<(), CommandError> {
        self.send_plain(Command::Submit {
            what,
            locals: Locals::default(),
            token,
        })
    }
}
